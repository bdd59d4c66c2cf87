"""Each rule of the turn's tables, broken by raw SQL: the database itself refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from recovery.constraints import violated_constraint
from recovery.fences import claimed_mark
from tests import factories as make
from tests.support.rules import declared_rules, refusal_of, silence_other_triggers
from turns.models import Turn

pytestmark = pytest.mark.django_db


def conversation() -> Model:
    return make.ConversationFactory.create()


def two_conversations() -> Model:
    first = make.ConversationFactory.create(client_key="same")
    return make.ConversationFactory.create(owner=first.owner)


def question() -> Model:
    return make.MessageFactory.create()


def streaming() -> Model:
    return make.MessageFactory.create(assistant=True)


def answer() -> Model:
    return make.MessageFactory.create(answered=True)


def queued() -> Turn:
    return make.TurnFactory.create()


def running() -> Turn:
    return make.TurnFactory.create(running=True)


def claimed_twice() -> Turn:
    return make.TurnFactory.create(running=True, generation=2, write_mark=claimed_mark(2))


def queued_at_one() -> Turn:
    return make.TurnFactory.create(generation=1, write_mark=claimed_mark(1))


def completed() -> Turn:
    return make.TurnFactory.create(completed=True)


def ended_beside_an_active_one() -> Model:
    ended = completed()
    make.TurnFactory.create(conversation=ended.conversation)
    return ended


def second_of_two_turns() -> Model:
    first = make.TurnFactory.create(completed=True, client_key="same")
    return make.TurnFactory.create(conversation=first.conversation)


def turn_with_chunk() -> Model:
    return make.TextChunkFactory.create().turn


def receipt() -> Model:
    return make.ReceiptFactory.create()


def ended_receipt() -> Model:
    return make.ReceiptFactory.create(completed=True)


def step() -> Model:
    return make.ProviderStepFactory.create()


def ended_step() -> Model:
    return make.ProviderStepFactory.create(completed=True)


def second_of_two_steps() -> Model:
    first = make.ProviderStepFactory.create(completed=True)
    return make.ProviderStepFactory.create(turn=first.turn, sequence=2)


def tool() -> Model:
    return make.ToolStepFactory.create()


def ended_tool() -> Model:
    return make.ToolStepFactory.create(succeeded=True)


def second_of_two_tools() -> Model:
    first = make.ToolStepFactory.create(call_id="same", invocation_key=KEY)
    return make.ToolStepFactory.create(turn=first.turn, provider_step=first.provider_step)


def address() -> Model:
    return make.WebhookAddressFactory.create()


def second_of_two_addresses() -> Model:
    first = make.WebhookAddressFactory.create(url="https://example.test/same")
    return make.WebhookAddressFactory.create(owner=first.owner)


def note() -> Model:
    return make.NoteFactory.create()


def second_of_two_notes() -> Model:
    make.NoteFactory.create(invocation_key=KEY)
    return make.NoteFactory.create()


def second_of_two_tokens() -> Model:
    make.ApiTokenFactory.create(digest="same")
    return make.ApiTokenFactory.create()


KEY: Final = "00000000-0000-4000-8000-000000000000"
OPEN_AGAIN: Final = """
    INSERT INTO turns_turn SELECT (jsonb_populate_record(t, jsonb_build_object(
        'id', 999999, 'state', 'queued', 'finished_at', NULL,
        'user_message_id', t.assistant_message_id, 'assistant_message_id', t.user_message_id
    ))).* FROM turns_turn t WHERE id = {pk}
"""
OPEN_ANOTHER_STEP: Final = """
    INSERT INTO turns_providerstep SELECT (jsonb_populate_record(s, jsonb_build_object(
        'id', 999999, 'sequence', 3))).* FROM turns_providerstep s WHERE id = {pk}
"""
END: Final = "finished_at = now()"
CODED: Final = f"{END}, error_code = 'runtime_lost'"
CLAIM: Final = {
    "state": "'running'",
    "generation": "1",
    "write_mark": "1::bigint << 32",
    "owner": "gen_random_uuid()",
    "claim_token": "gen_random_uuid()",
    "attempts": "attempts + 1",
    "claimed_at": "now()",
    "deadline_at": "now()",
}


def claim(**otherwise: str) -> str:
    """Return the assignments of a claim, some of them other than they should be."""
    return ", ".join(f"{name} = {value}" for name, value in {**CLAIM, **otherwise}.items())


# table, rule, a row, and what breaks the rule: assignments, or a whole statement
BREACHES: Final[list[tuple[str, str, Callable[[], Model], str]]] = [
    ("conversation", "one_per_client_key", two_conversations, "client_key = 'same'"),
    ("conversation", "identity_is_fixed", conversation, "id = -id"),
    ("conversation", "identity_is_fixed", conversation, "owner_id = owner_id + 1"),
    ("conversation", "revision_never_falls", conversation, "revision = revision - 1"),
    ("message", "state_known", streaming, "state = 'odd'"),
    ("message", "ended_with_its_time", streaming, "state = 'complete'"),
    ("message", "ended_with_its_time", streaming, END),
    ("message", "user_is_born_complete", question, "state = 'failed'"),
    ("message", "text_bounded", question, "text = repeat('é', 4001)"),
    ("message", "text_bounded", streaming, "text = repeat('é', 32769)"),
    ("message", "moves", answer, "state = 'streaming', finished_at = NULL"),
    ("message", "identity_is_fixed", question, "id = -id"),
    ("message", "identity_is_fixed", question, "role = 'assistant'"),
    ("message", "identity_is_fixed", streaming, "created_at = now() - interval '1 s'"),
    ("message", "answer_is_final", answer, "text = 'another answer'"),
    ("turn", "state_known", running, "state = 'odd'"),
    ("turn", "ended_with_its_time", running, "state = 'completed'"),
    ("turn", "ended_with_its_time", running, END),
    ("turn", "error_code_is_honest", running, f"state = 'completed', {CODED}"),
    ("turn", "error_code_is_honest", running, f"state = 'interrupted', {END}"),
    ("turn", "error_code_is_honest", running, f"state = 'failed', {END}"),
    ("turn", "fence_presented", running, "write_mark = 1"),
    ("turn", "running_is_owned", queued, "state = 'running'"),
    ("turn", "running_is_owned", running, "deadline_at = NULL"),
    ("turn", "limits_bounded", queued, "limits = to_jsonb(repeat('x', 5000))"),
    ("turn", "one_active_per_conversation", ended_beside_an_active_one, OPEN_AGAIN),
    ("turn", "one_per_client_key", second_of_two_turns, "client_key = 'same'"),
    ("turn", "fence", running, "late_bytes = 1, write_mark = write_mark"),
    ("turn", "generation", claimed_twice, "generation = 1, write_mark = 1::bigint << 32"),
    ("turn", "generation", running, "generation = 3, write_mark = 3::bigint << 32"),
    ("turn", "generation", running, "owner = gen_random_uuid()"),
    ("turn", "claim_is_counted", queued, claim(attempts="0")),
    ("turn", "claim_is_counted", queued, claim(attempts="2")),
    ("turn", "claim_is_counted", queued, claim(generation="2", write_mark="2::bigint << 32")),
    ("turn", "claim_is_counted", queued_at_one, claim()),
    ("turn", "claim_is_counted", queued, "attempts = 1"),
    ("turn", "claim_is_counted", running, "attempts = 2"),
    ("turn", "claim_is_counted", running, "generation = 2, write_mark = 2::bigint << 32"),
    ("turn", "claim_is_counted", running, claim(generation="2", write_mark="2::bigint << 32")),
    ("turn", "claim_is_counted", running, f"state = 'completed', {END}, attempts = 2"),
    ("turn", "claim_is_fixed", queued, "claim_token = gen_random_uuid()"),
    ("turn", "claim_is_fixed", queued, "owner = gen_random_uuid()"),
    ("turn", "claim_is_fixed", queued, "deadline_at = now()"),
    ("turn", "claim_is_fixed", running, "owner = gen_random_uuid()"),
    ("turn", "claim_is_fixed", running, "claim_token = gen_random_uuid()"),
    ("turn", "claim_is_fixed", running, "claimed_at = claimed_at - interval '1 s'"),
    ("turn", "claim_is_fixed", running, "deadline_at = deadline_at + interval '1 s'"),
    ("turn", "claim_is_fixed", running, f"state = 'completed', {END}, claim_token = NULL"),
    ("turn", "claim_is_fixed", running, f"state = 'completed', {END}, owner = NULL"),
    ("turn", "moves", queued, f"state = 'completed', {END}"),
    ("turn", "moves", completed, f"state = 'interrupted', {CODED}"),
    ("turn", "end_is_final", completed, "late_bytes = 1"),
    ("turn", "admission_is_immutable", running, "id = -id"),
    ("turn", "admission_is_immutable", running, "model = 'another'"),
    ("turn", "admission_is_immutable", running, "limits = '[]'"),
    ("turn", "admission_is_immutable", queued, "request_digest = 'another'"),
    (
        "turn",
        "chunks_are_folded_first",
        turn_with_chunk,
        "DELETE FROM turns_turn WHERE id = {pk}",
    ),
    ("receipt", "state_known", receipt, "state = 'odd'"),
    ("receipt", "ended_with_its_time", receipt, "state = 'completed'"),
    ("receipt", "error_code_is_honest", receipt, f"state = 'interrupted', {END}"),
    ("receipt", "usage_bounded", receipt, "usage = to_jsonb(repeat('x', 17000))"),
    ("receipt", "moves", ended_receipt, "state = 'captured', finished_at = NULL"),
    ("receipt", "end_is_final", ended_receipt, "usage = '[]'"),
    ("receipt", "identity_is_fixed", receipt, "id = -id"),
    ("receipt", "identity_is_fixed", receipt, "input_digest = 'another'"),
    ("providerstep", "state_known", step, "state = 'odd'"),
    ("providerstep", "ended_with_its_time", step, "state = 'completed'"),
    ("providerstep", "error_code_is_honest", step, f"state = 'failed', {END}"),
    ("providerstep", "response_id_bounded", step, "response_id = repeat('x', 513)"),
    ("providerstep", "usage_bounded", step, "usage = to_jsonb(repeat('x', 17000))"),
    ("providerstep", "repeats_bounded", step, "repeats = array_fill(1, ARRAY[33])"),
    ("providerstep", "count_bounded", step, "sequence = 33"),
    ("providerstep", "one_per_sequence", second_of_two_steps, "sequence = 1"),
    ("providerstep", "one_open_per_turn", second_of_two_steps, OPEN_ANOTHER_STEP),
    ("providerstep", "moves", ended_step, f"state = 'interrupted', {CODED}"),
    ("providerstep", "end_is_final", ended_step, "response_id = 'late'"),
    ("providerstep", "identity_is_fixed", step, "id = -id"),
    ("providerstep", "identity_is_fixed", step, "request_bytes = 5"),
    ("toolstep", "state_known", tool, "state = 'odd'"),
    ("toolstep", "ended_with_its_time", tool, "state = 'cancelled'"),
    ("toolstep", "error_code_is_honest", tool, f"state = 'unavailable', {END}"),
    ("toolstep", "running_was_started", tool, "state = 'running'"),
    ("toolstep", "arguments_bounded", tool, "arguments = repeat('x', 65537)"),
    ("toolstep", "result_bounded", tool, "result = repeat('x', 65537)"),
    ("toolstep", "ids_bounded", tool, "name = repeat('x', 129)"),
    ("toolstep", "ids_bounded", tool, "call_id = repeat('x', 513)"),
    ("toolstep", "one_per_call_id", second_of_two_tools, "call_id = 'same'"),
    ("toolstep", "one_per_sequence", second_of_two_tools, "sequence = 1"),
    ("toolstep", "invocation_key", second_of_two_tools, f"invocation_key = '{KEY}'"),
    ("toolstep", "moves", tool, f"state = 'succeeded', started_at = now(), {END}"),
    ("toolstep", "end_is_final", ended_tool, "result = 'another outcome'"),
    ("toolstep", "identity_is_fixed", tool, "id = -id"),
    ("toolstep", "identity_is_fixed", tool, "arguments = '{{}}'"),
    (
        "textchunk",
        "text_bounded",
        running,
        "INSERT INTO turns_textchunk (turn_id, seq, generation, text) "
        "VALUES ({pk}, 1, 1, repeat('x', 16385))",
    ),
    (
        "textchunk",
        "text_is_append_only",
        turn_with_chunk,
        "UPDATE turns_textchunk SET text = 'rewritten' WHERE turn_id = {pk}",
    ),
    ("note", "text_bounded", note, "text = repeat('é', 1001)"),
    ("note", "is_final", note, "id = -id"),
    ("note", "is_final", note, "text = 'something else'"),
    ("note", "invocation_key", second_of_two_notes, f"invocation_key = '{KEY}'"),
    ("webhookaddress", "identity_is_fixed", address, "owner_id = owner_id + 1"),
    ("apitoken", "identity_is_fixed", second_of_two_tokens, "user_id = user_id + 1"),
    ("apitoken", "identity_is_fixed", second_of_two_tokens, "digest = 'another'"),
    ("webhookaddress", "url_bounded", address, "url = repeat('x', 2049)"),
    (
        "webhookaddress",
        "one_per_url",
        second_of_two_addresses,
        "url = 'https://example.test/same'",
    ),
    ("apitoken", "digest", second_of_two_tokens, "digest = 'same'"),
]
CHILDREN: Final[dict[str, Any]] = {
    "receipt": make.ReceiptFactory,
    "providerstep": make.ProviderStepFactory,
    "toolstep": make.ToolStepFactory,
    "textchunk": make.TextChunkFactory,
}


@pytest.mark.parametrize(
    ("table", "rule", "row", "breach"), BREACHES, ids=[f"{b[0]}_{b[1]}" for b in BREACHES]
)
def test_the_database_refuses(
    table: str, rule: str, row: Callable[[], Model], breach: str
) -> None:
    """behaviour E8: what a receipt captured never changes"""
    pk = row().pk
    if breach.lstrip().startswith(("INSERT", "UPDATE", "DELETE")):
        sql = breach.format(pk=pk)
    else:
        moved = table == "turn" and "write_mark" not in breach
        mark = "write_mark = write_mark + 1, " if moved else ""
        sql = f"UPDATE turns_{table} SET {mark}{breach.format()} WHERE id = {pk}"

    silence_other_triggers(f"turns_{table}", rule)
    # a unique column's index is named by Django, after its column
    assert refusal_of(sql).startswith(f"turns_{table}_{rule}")


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize(
    "parent", ["queued", "completed", "failed", "cancelled", "interrupted"]
)
def test_a_child_cannot_be_born_under_a_turn_that_does_not_run(child: str, parent: str) -> None:
    state = {} if parent == "queued" else {parent: True}
    turn = make.TurnFactory.create(**state)
    step = make.ProviderStepFactory.create(completed=True)
    extra = {"provider_step": step, "sequence": 1} if child == "toolstep" else {}

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        CHILDREN[child].create(turn=turn, generation=turn.generation, **extra)

    assert violated_constraint(refused.value) == f"turns_{child}_child_fence"


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("generation", [0, 2])
def test_a_child_of_another_generation_cannot_be_born(child: str, generation: int) -> None:
    turn = running()
    step = make.ProviderStepFactory.create(turn=turn, completed=True, sequence=9)
    extra = {"provider_step": step} if child == "toolstep" else {}

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        CHILDREN[child].create(turn=turn, generation=generation, **extra)

    assert violated_constraint(refused.value) == f"turns_{child}_child_fence"


def test_a_full_save_of_a_stale_instance_is_refused() -> None:
    """It passes any fence that it carries along; the generation, which would fall, stops it:
    only a claim changes it."""
    stale = make.TurnFactory.create()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE turns_turn SET {claim()} WHERE id = %s", [stale.pk])

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        stale.save()

    assert violated_constraint(refused.value) == "turns_turn_claim_is_counted"


def test_every_rule_of_the_tables_is_broken_here() -> None:
    broken = {f"turns_{table}_{rule}" for table, rule, _, _ in BREACHES}
    broken |= {f"turns_{child}_child_fence" for child in CHILDREN}
    # for others to refer to; two rows that break it break the primary key
    broken |= {"turns_conversation_of_owner", "turns_message_in_conversation"}
    broken |= {"turns_providerstep_of_turn"}
    # at the end of a transaction (test_models_belonging)
    broken |= {f"turns_{child}_goes_with_its_parent" for child in CHILDREN}
    # by another session, whose level is said before its first statement (test_isolation)
    broken |= {"turns_turn_deleted_read_committed"}

    assert declared_rules("turns") - broken == set()
