"""The ledger of a turn: requests to the provider, calls of tools, one outcome each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.support.settled import every_row
from turns import bounds, transitions
from turns.digests import digest
from turns.models import ProviderStep, Receipt, ToolStep, Turn
from turns.transitions import RequestedCall

pytestmark = pytest.mark.django_db


@pytest.fixture
def turn() -> Turn:
    return make.TurnFactory.create(running=True)


@pytest.fixture
def fence(turn: Turn) -> Fence:
    return make.fence_of(turn)


@pytest.fixture
def step(fence: Fence) -> ProviderStep:
    return transitions.capture_receipt(fence, make.request_facts())


def call(number: int = 1, **changes: Any) -> RequestedCall:
    facts = {"call_id": f"call-{number}", "item_id": f"item-{number}", "name": "search_history"}
    return RequestedCall(**{**facts, "arguments": '{"q": 1}', **changes})


def complete(
    fence: Fence,
    step: ProviderStep,
    *calls: RequestedCall,
    response_id: str = "r1",
    **facts: Any,
) -> list[ToolStep]:
    facts = {"usage": {"input_tokens": 3}, "last_seq": None, **facts}
    return transitions.complete_provider_step(
        fence, step.pk, response_id=response_id, calls=calls, **facts
    )


def run(fence: Fence, tool: ToolStep, result: str = "found") -> ToolStep:
    transitions.start_tool_step(fence, tool.pk)
    return transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED, result=result)


class TestProviderSteps:
    def test_before_any_request_there_is_a_receipt_and_a_started_step(
        self, turn: Turn, fence: Fence
    ) -> None:
        """behaviour E1"""
        step = transitions.capture_receipt(fence, make.request_facts(message_count=4))
        receipt = Receipt.objects.get(turn=turn)

        assert (receipt.state, receipt.message_count, receipt.usage) == ("captured", 4, None)
        assert receipt.input_digest == digest("input")
        assert (step.sequence, step.state, step.generation) == (1, "started", 1)

    @pytest.mark.usefixtures("step")
    def test_a_receipt_is_captured_once(self, fence: Fence) -> None:
        before = every_row()
        with pytest.raises(IllegalTransition):
            transitions.capture_receipt(fence, make.request_facts())
        assert every_row() == before

    def test_the_next_step_follows_a_completed_one(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """behaviour E2"""
        complete(fence, step)
        second = transitions.start_provider_step(fence, make.request_facts())

        assert (second.sequence, second.state) == (2, "started")

    @pytest.mark.usefixtures("step")
    def test_two_requests_are_never_under_way_at_once(self, fence: Fence) -> None:
        with pytest.raises(IllegalTransition):
            transitions.start_provider_step(fence, make.request_facts())

    def test_no_request_continues_over_an_open_call(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """behaviour D4"""
        (tool,) = complete(fence, step, call())
        for _ in ("requested", "running"):
            with pytest.raises(IllegalTransition):
                transitions.start_provider_step(fence, make.request_facts())
            if tool.state == ToolStep.State.REQUESTED:
                tool = transitions.start_tool_step(fence, tool.pk)
        transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED, result="x")

        assert transitions.start_provider_step(fence, make.request_facts()).sequence == 2

    def test_the_32nd_request_is_the_last(self, turn: Turn, fence: Fence) -> None:
        make.ReceiptFactory.create(turn=turn)
        make.ProviderStepFactory.create(turn=turn, sequence=32, completed=True)

        with pytest.raises(BoundExceeded) as bound:
            transitions.start_provider_step(fence, make.request_facts())
        assert bound.value.code == "provider_step_limit_reached"

    def test_usage_is_summed_and_never_invented(self, fence: Fence, step: ProviderStep) -> None:
        complete(fence, step, usage=None)
        assert Receipt.objects.get().usage is None
        for number, usage in enumerate([{"input_tokens": 3}, {"input_tokens": 4, "x": 1}]):
            step = transitions.start_provider_step(fence, make.request_facts())
            complete(fence, step, response_id=f"r{number + 2}", usage=usage)

        assert Receipt.objects.get().usage == {"input_tokens": 7, "x": 1}

    def test_where_each_response_ended_in_the_text_is_kept(
        self, turn: Turn, fence: Fence, step: ProviderStep
    ) -> None:
        make.TextChunkFactory.create(turn=turn, seq=1, text="Let me sée. ")
        make.TextChunkFactory.create(turn=turn, seq=2, text="Later")
        complete(fence, step, last_seq=1)

        assert ProviderStep.objects.get().text_length == len("Let me sée. ")

    def test_a_completion_delivered_again_returns_its_calls(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """failure H16"""
        first = complete(fence, step, call(1), call(2))
        run(fence, first[0])
        again = complete(fence, step, call(1), call(2))

        assert [tool.pk for tool in again] == [tool.pk for tool in first]
        assert [tool.state for tool in again] == ["succeeded", "requested"]
        assert ToolStep.objects.count() == 2

    def test_a_completed_step_does_not_complete_differently(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        complete(fence, step)
        with pytest.raises(IllegalTransition):
            complete(fence, step, response_id="another")

    def test_what_was_committed_is_found_again(self, fence: Fence, step: ProviderStep) -> None:
        """After a commit of unknown outcome."""
        assert transitions.provider_step_at(fence, 1) == step
        assert transitions.provider_step_at(fence, 2) is None
        (tool,) = complete(fence, step, call())

        # what has ended is not sent
        assert transitions.provider_step_at(fence, 1) is None
        assert transitions.running_tool_steps(fence, [tool.pk]) == []
        assert transitions.tool_steps_of(fence, step.pk) == [tool]
        transitions.start_tool_step(fence, tool.pk)
        assert transitions.running_tool_steps(fence, [tool.pk]) == [tool]


class TestCalls:
    def test_arguments_are_kept_verbatim_beside_their_canonical_digest(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """behaviour C1, D2"""
        (tool,) = complete(fence, step, call(arguments='{ "b":1, "a" : "é" }'))

        assert tool.arguments == '{ "b":1, "a" : "é" }'
        assert tool.arguments_digest == digest('{"a":"é","b":1}')
        assert (tool.state, tool.sequence) == ("requested", 1)

    def test_the_same_call_twice_is_one_step(self, fence: Fence, step: ProviderStep) -> None:
        """behaviour D1"""
        tools = complete(fence, step, call(1), call(1, arguments='{"q":1}'), call(2))

        assert [tool.sequence for tool in tools] == [1, 2]
        assert ToolStep.objects.count() == 2

    def test_a_later_response_that_repeats_a_call_gets_its_outcome(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        run(fence, complete(fence, step, call())[0])
        second = transitions.start_provider_step(fence, make.request_facts())
        (tool,) = complete(fence, second, call(), response_id="r2")

        assert (tool.state, tool.result) == ("succeeded", "found")
        with pytest.raises(IllegalTransition):
            transitions.start_tool_step(fence, tool.pk)

    @pytest.mark.parametrize(
        "other", [{"item_id": "another"}, {"arguments": "{}"}, {"name": "webhook_post"}]
    )
    def test_one_id_for_two_calls_is_a_conflict(
        self, fence: Fence, step: ProviderStep, other: dict[str, str]
    ) -> None:
        """behaviour D1"""
        with pytest.raises(Refused) as refused:
            complete(fence, step, call(1), call(1, **other))

        assert refused.value.code == "provider_call_id_conflict"
        step.refresh_from_db()
        assert step.state == "started"
        assert not ToolStep.objects.exists()

    def test_the_17th_call_is_stored_failed_and_never_runs(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """behaviour C4"""
        tools = complete(fence, step, *(call(n) for n in range(17)))

        assert {tool.state for tool in tools[:16]} == {"requested"}
        assert (tools[16].state, tools[16].error_code) == ("failed", "tool_call_limit_reached")
        with pytest.raises(IllegalTransition):
            transitions.start_tool_step(fence, tools[16].pk)

    def test_past_the_hard_stop_nothing_is_stored(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        with pytest.raises(BoundExceeded) as bound:
            complete(fence, step, *(call(n) for n in range(33)))

        assert bound.value.code == "tool_call_limit_reached"
        assert not ToolStep.objects.exists()

    @pytest.mark.parametrize(
        ("state", "code"),
        [("unavailable", "unknown_tool"), ("failed", "invalid_tool_arguments")],
    )
    def test_a_call_that_cannot_run_is_stored_ended(
        self, fence: Fence, step: ProviderStep, state: str, code: str
    ) -> None:
        refused = call(state=ToolStep.State(state), error_code=ErrorCode(code), result="no")
        (tool,) = complete(fence, step, refused)

        assert (tool.state, tool.error_code, tool.result) == (state, code, "no")
        assert tool.started_at is None
        assert tool.finished_at is not None

    def test_arguments_past_their_bound_are_stored_as_a_failed_call(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        """behaviour D2"""
        huge = '{"q": "' + "x" * bounds.TOOL_ARGUMENTS_MAX_BYTES + '"}'
        (tool,) = complete(fence, step, call(arguments=huge))

        assert (tool.state, tool.error_code) == ("failed", "invalid_tool_arguments")
        assert (tool.arguments, tool.arguments_digest) == ("", digest(huge.replace(" ", "")))

    def test_text_that_cannot_be_stored_is_repaired(
        self, fence: Fence, step: ProviderStep
    ) -> None:
        (tool,) = complete(fence, step, call(arguments='{"q": "\x00\ud800"}'))

        assert tool.arguments == '{"q": "\ufffd\ufffd"}'


class TestOutcomes:
    @pytest.fixture
    def tool(self, fence: Fence, step: ProviderStep) -> ToolStep:
        return complete(fence, step, call())[0]

    def test_a_call_starts_at_most_once(self, fence: Fence, tool: ToolStep) -> None:
        """behaviour D4"""
        started = transitions.start_tool_step(fence, tool.pk)
        assert (started.state, started.started_at is not None) == ("running", True)

        for _ in range(2):
            with pytest.raises(IllegalTransition):
                transitions.start_tool_step(fence, tool.pk)
            transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED, result="x")

    def test_the_same_outcome_twice_is_one_outcome(self, fence: Fence, tool: ToolStep) -> None:
        done = run(fence, tool)
        before = every_row()
        again = transitions.finish_tool_step(
            fence, tool.pk, ToolStep.State.SUCCEEDED, result="found"
        )

        assert again == done
        assert every_row() == before

    @pytest.mark.parametrize(
        ("state", "result"), [("succeeded", "another"), ("failed", "found")]
    )
    def test_another_outcome_is_a_conflict(
        self, fence: Fence, tool: ToolStep, state: str, result: str
    ) -> None:
        run(fence, tool)
        with pytest.raises(Refused) as refused:
            transitions.finish_tool_step(fence, tool.pk, ToolStep.State(state), result=result)

        assert refused.value.code == "tool_outcome_conflict"
        assert ToolStep.objects.get().result == "found"

    def test_what_was_not_started_has_no_success(self, fence: Fence, tool: ToolStep) -> None:
        with pytest.raises(IllegalTransition):
            transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED)

    @pytest.mark.parametrize(
        "whole",
        [
            "é" * bounds.TOOL_RESULT_MAX_BYTES,
            json.dumps(["🛶" * 650] * 500, ensure_ascii=False),
        ],
        ids=["one word", "500 items, 20 times the bound"],
    )
    def test_a_result_past_its_bound_is_cut_with_a_mark(
        self, fence: Fence, tool: ToolStep, whole: str
    ) -> None:
        """failures H39, H41: between characters, with a mark that says how much there was"""
        done = run(fence, tool, whole)

        assert len(done.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES
        kept, mark = done.result.rsplit("\n", 1)
        assert whole.startswith(kept)
        assert mark == f"[cut: the result was {len(whole.encode())} bytes]"
        assert (done.result_bytes, done.result_digest) == (len(whole.encode()), digest(whole))

    def test_a_failure_has_a_code(self, fence: Fence, tool: ToolStep) -> None:
        transitions.start_tool_step(fence, tool.pk)
        done = transitions.finish_tool_step(fence, tool.pk, ToolStep.State.FAILED)

        assert done.error_code == "tool_failed"

    def test_a_call_of_another_turn_is_not_started(self, fence: Fence) -> None:
        foreign = make.ToolStepFactory.create()
        with pytest.raises(IllegalTransition):
            transitions.start_tool_step(fence, foreign.pk)


def test_every_step_of_a_stale_owner_is_refused(turn: Turn, fence: Fence) -> None:
    step = transitions.capture_receipt(fence, make.request_facts())
    (tool,) = complete(fence, step, call())
    transitions.interrupt_own_turns([fence], ErrorCode.RUNTIME_STOPPED)
    before = every_row()

    for act in (
        lambda: transitions.capture_receipt(fence, make.request_facts()),
        lambda: transitions.start_provider_step(fence, make.request_facts()),
        lambda: complete(fence, step, call(2)),
        lambda: transitions.start_tool_step(fence, tool.pk),
        lambda: transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED),
        lambda: transitions.finish_turn(fence, Turn.State.COMPLETED),
    ):
        with pytest.raises(StaleFence):
            act()
    assert every_row() == before
