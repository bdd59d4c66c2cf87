"""The contract's sentences about text turns, as far as rows alone can show them.

What needs a real worker that dies is in tests/crash/.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db.models.functions import Now

from recovery.errors import ERROR_CODE_MAX_CHARS, ErrorCode, StaleFence
from recovery.models import RecoveryEvent, Runtime
from tests import factories as make
from tests.support.settled import assert_settled, every_row
from tests.support.stages import STAGES, text_at, turn_at
from turns import history, transitions
from turns.models import (
    Message,
    ProviderStep,
    Receipt,
    ToolStep,
    Turn,
)
from turns.providers.types import FunctionCall, FunctionResult
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)

RUNNING_STAGES = STAGES[1:]


@pytest.fixture
def runtime() -> Runtime:
    return make.RuntimeFactory.create()


def die(runtime: Runtime) -> None:
    """Bury the runtime, as the sweep does once its lock is gone."""
    Runtime.objects.filter(pk=runtime.pk).update(stopped_at=Now(), stop_reason="runtime_lost")


def recover() -> None:
    TurnRecovery().settle_orphans()


def reported() -> dict[str, object]:
    """Return everything that only a provider or a tool can have said."""
    return {
        "responses": list(ProviderStep.objects.order_by("pk").values("usage", "response_id")),
        "completed": ProviderStep.objects.filter(state="completed").count(),
        "usage": list(Receipt.objects.values_list("usage", flat=True)),
        "results": list(ToolStep.objects.filter(state="succeeded").values("pk", "result")),
        "calls": ToolStep.objects.count(),
    }


@pytest.mark.parametrize("stage", RUNNING_STAGES)
class TestADeadTurn:
    """If its TurnServer dies, everything becomes terminal in one transaction."""

    def test_it_ends_interrupted_with_what_was_committed(
        self, runtime: Runtime, stage: str
    ) -> None:
        turn = turn_at(stage, runtime=runtime)
        die(runtime)
        recover()

        assert_settled(turn, "interrupted", code="runtime_lost", text=text_at(stage))
        assert RecoveryEvent.objects.get().row_id == turn.pk

    def test_recovery_invents_no_completion_usage_or_output(
        self, runtime: Runtime, stage: str
    ) -> None:
        turn = turn_at(stage, runtime=runtime)
        known = reported()
        die(runtime)
        recover()

        assert reported() == known
        assert not Message.objects.filter(role="assistant", state="complete").exists()
        turn.refresh_from_db()
        assert turn.error_code

    def test_rerunning_recovery_is_a_no_op(self, runtime: Runtime, stage: str) -> None:
        turn_at(stage, runtime=runtime)
        die(runtime)
        recover()
        before = every_row()

        recover()

        assert every_row() == before

    def test_a_stale_process_may_not_commit_after_it(
        self, runtime: Runtime, stage: str
    ) -> None:
        turn = turn_at(stage, runtime=runtime)
        fence = make.fence_of(turn)
        die(runtime)
        recover()
        before = every_row()
        step = ProviderStep.objects.order_by("pk").last()
        tool = ToolStep.objects.first()

        acts: list[Callable[[], object]] = [
            lambda: transitions.capture_receipt(fence, make.request_facts()),
            lambda: transitions.start_provider_step(fence, make.request_facts()),
            lambda: transitions.finish_turn(fence, Turn.State.COMPLETED, text="late"),
            lambda: transitions.complete_provider_step(
                fence, step.pk if step else 0, response_id="late", usage=None, last_seq=None,
                calls=[],
            ),
            lambda: transitions.start_tool_step(fence, tool.pk if tool else 0),
            lambda: transitions.finish_tool_step(
                fence, tool.pk if tool else 0, ToolStep.State.SUCCEEDED, result="late"
            ),
        ]  # fmt: skip
        for act in acts:
            with pytest.raises(StaleFence):
                act()
        assert every_row() == before

    def test_the_person_can_ask_again_and_only_that_starts_anything(
        self, runtime: Runtime, stage: str
    ) -> None:
        turn = turn_at(stage, runtime=runtime)
        die(runtime)
        recover()
        assert Turn.objects.open().count() == 0

        owner = turn.conversation.owner_id
        again = transitions.admit_turn(owner, turn.conversation_id, "Why?")

        assert again.created
        assert again.turn.pk != turn.pk

    def test_the_next_request_pairs_every_call_with_one_result(
        self, runtime: Runtime, stage: str
    ) -> None:
        turn = turn_at(stage, runtime=runtime)
        die(runtime)
        recover()
        owner = turn.conversation.owner_id
        again = transitions.admit_turn(owner, turn.conversation_id, "And?").turn
        items = history.read(again).items

        calls = [item.call_id for item in items if isinstance(item, FunctionCall)]
        results = [item.call_id for item in items if isinstance(item, FunctionResult)]
        assert calls == results == list(ToolStep.objects.values_list("call_id", flat=True))


@pytest.mark.parametrize("stage", RUNNING_STAGES)
def test_identity_owner_budget_and_fence_are_stored_before_any_effect(
    runtime: Runtime, stage: str
) -> None:
    turn = turn_at(stage, runtime=runtime)

    assert turn.owner == runtime.pk
    assert (turn.generation, turn.claim_token is not None) == (1, True)
    assert turn.deadline_at is not None
    assert turn.limits["tool_calls"] == 16
    rows: list[Receipt | ProviderStep | ToolStep] = [
        *Receipt.objects.all(),
        *ProviderStep.objects.all(),
        *ToolStep.objects.all(),
    ]
    assert {row.generation for row in rows} <= {turn.generation}


@pytest.mark.parametrize("stage", STAGES)
def test_a_live_turn_is_left_alone(runtime: Runtime, stage: str) -> None:
    turn_at(stage, runtime=runtime)
    before = every_row()

    recover()

    assert every_row() == before


@pytest.mark.parametrize("stage", STAGES)
def test_a_duplicate_hint_never_claims_a_turn_again(runtime: Runtime, stage: str) -> None:
    turn = turn_at(stage, runtime=runtime)
    other = make.RuntimeFactory.create()

    first = transitions.claim_turn(turn.pk, owner=other.pk)
    second = transitions.claim_turn(turn.pk, owner=other.pk)

    assert (first is not None) == (stage == "admitted")
    assert second is None
    turn.refresh_from_db()
    assert turn.generation == 1


def test_a_tool_call_that_was_delivered_twice_has_run_once(runtime: Runtime) -> None:
    turn = turn_at("outcome_committed", runtime=runtime)
    before = every_row()["turns_toolstep"]
    step, tool = ProviderStep.objects.get(), ToolStep.objects.get()
    call = transitions.RequestedCall(
        tool.call_id, tool.item_id, tool.name, tool.arguments, effect=ToolStep.Effect.EXTERNAL
    )

    (again,) = transitions.complete_provider_step(
        make.fence_of(turn), step.pk, response_id="r1", usage=None, last_seq=1, calls=[call]
    )

    assert (again.pk, again.state, again.result) == (tool.pk, "succeeded", "sent")
    assert every_row()["turns_toolstep"] == before


def test_an_external_effect_of_unknown_outcome_is_told_as_unknown(runtime: Runtime) -> None:
    turn = turn_at("tool_running", runtime=runtime)
    die(runtime)
    recover()
    tool = ToolStep.objects.get()

    assert (tool.state, tool.error_code) == ("interrupted", "outcome_unknown")
    assert "unknown whether it took effect" in history.outcome_told(tool)
    assert turn.tool_steps.count() == 1


def test_durable_failures_are_bounded_application_codes() -> None:
    for code in ErrorCode:
        assert 0 < len(code.value) <= ERROR_CODE_MAX_CHARS
        assert code.value.replace("_", "").isalnum()
        assert code.label.endswith(".")
