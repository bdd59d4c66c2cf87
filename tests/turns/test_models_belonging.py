"""A tool step belongs to a provider step of its own turn: the database keeps count."""

from __future__ import annotations

from itertools import permutations
from typing import Final

import pytest
from django.db import connection

from tests import factories as make
from tests.support.rules import at_once, refusal_of
from turns.models import ToolStep, Turn

pytestmark = pytest.mark.django_db

STEP: Final = """
    INSERT INTO turns_toolstep (turn_id, provider_step_id, generation, sequence, state,
        error_code, call_id, item_id, name, effect, arguments, arguments_digest, invocation_key,
        result, result_digest, result_bytes)
    VALUES ({turn}, {step}, 1, 1, 'requested', '', 'call', '', 'tool', 'read', '{{}}', 'digest',
        gen_random_uuid(), '', '', 0)
"""
ROWS_OF_A_TURN: Final = ("turns_toolstep", "turns_providerstep", "turns_turn")


@pytest.mark.parametrize("whose", ["of another turn", "of nobody"])
def test_a_tool_step_is_of_a_provider_step_of_its_own_turn(whose: str) -> None:
    own = make.ProviderStepFactory.create(completed=True)
    other = make.ProviderStepFactory.create(completed=True).pk
    named = other if whose == "of another turn" else 0

    with at_once():
        refusal = refusal_of(STEP.format(turn=own.turn_id, step=named))

    assert refusal == "turns_toolstep_provider_step_of_turn"
    connection.cursor().execute(STEP.format(turn=own.turn_id, step=own.pk))
    connection.check_constraints()


@pytest.mark.parametrize(
    ("table", "refused_by"),
    [
        ("turns_providerstep", "turns_toolstep_provider_step_of_turn"),
        # a turn with a tool step has the provider step as well
        ("turns_turn", "turns_providerstep_turn_id_"),
    ],
)
def test_what_a_tool_step_belongs_to_does_not_go_without_it(
    table: str, refused_by: str
) -> None:
    make.ToolStepFactory.create()

    with at_once():
        refusal = refusal_of(f"DELETE FROM {table}")

    assert refusal.startswith(refused_by)


@pytest.mark.parametrize("order", [*permutations(ROWS_OF_A_TURN)])
def test_the_rows_of_a_turn_leave_in_any_order_within_a_transaction(
    order: tuple[str, ...],
) -> None:
    make.ToolStepFactory.create()
    connection.check_constraints()

    with connection.cursor() as cursor:
        for table in order:
            cursor.execute(f"DELETE FROM {table}")

    connection.check_constraints()


@pytest.mark.parametrize("record", ["receipt", "providerstep", "toolstep"])
def test_what_a_turn_did_is_removed_with_the_turn_alone(record: str) -> None:
    call = make.ToolStepFactory.create()
    rows = {
        "receipt": make.ReceiptFactory.create(turn=call.turn),
        "providerstep": make.ProviderStepFactory.create(turn=call.turn, sequence=2),
        "toolstep": call,
    }

    refusal = refusal_of(
        f"DELETE FROM turns_{record} WHERE id = {rows[record].pk}; "
        "SET CONSTRAINTS ALL IMMEDIATE"
    )

    assert refusal == f"turns_{record}_goes_with_its_parent"


@pytest.mark.parametrize("removed", ["turn", "conversation", "person"])
def test_removing_takes_along_the_tool_steps_that_belonged_to_it(removed: str) -> None:
    step = make.ToolStepFactory.create()
    kept = make.ToolStepFactory.create()
    turn = step.turn
    connection.check_constraints()

    {
        "turn": turn,
        "conversation": turn.conversation,
        "person": turn.conversation.owner,
    }[removed].delete()

    connection.check_constraints()
    assert [*ToolStep.objects.values_list("pk", flat=True)] == [kept.pk]
    assert not Turn.objects.filter(pk=turn.pk).exists()
