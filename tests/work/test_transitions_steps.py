"""The ledger of a job: requests to the provider, calls of tools, one outcome each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.support.jobs import every_job_row
from turns import bounds
from turns.digests import digest
from turns.models import Conversation
from turns.transitions import RequestedCall
from work import bounds as work_bounds
from work import transitions
from work.models import WorkJob, WorkProviderStep, WorkStep

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


@pytest.fixture
def fence(job: WorkJob) -> Fence:
    return make.fence_of(job)


@pytest.fixture
def step(fence: Fence) -> WorkProviderStep:
    return transitions.start_provider_step(fence, make.request_facts())


def call(number: int = 1, **changes: Any) -> RequestedCall:
    facts = {"call_id": f"call-{number}", "item_id": f"item-{number}", "name": "search_history"}
    return RequestedCall(**{**facts, "arguments": '{"q": 1}', **changes})


def complete(
    fence: Fence,
    step: WorkProviderStep,
    *calls: RequestedCall,
    response_id: str = "r1",
    **facts: Any,
) -> list[WorkStep]:
    facts = {"usage": {"input_tokens": 3}, "text": "", **facts}
    return transitions.complete_provider_step(
        fence, step.pk, response_id=response_id, calls=calls, **facts
    )


def run(fence: Fence, tool: WorkStep, result: str = "found") -> WorkStep:
    transitions.start_step(fence, tool.pk)
    return transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED, result=result)


class TestWorkProviderSteps:
    def test_a_request_is_stored_before_it_is_sent(self, job: WorkJob, fence: Fence) -> None:
        step = transitions.start_provider_step(fence, make.request_facts())

        assert step == WorkProviderStep.objects.get(job=job)
        assert (step.sequence, step.state, step.generation) == (1, "started", 1)
        assert (step.text, step.usage, step.finished_at) == ("", None, None)

    def test_the_next_step_follows_a_completed_one(
        self, fence: Fence, step: WorkProviderStep
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
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """behaviour D4"""
        (tool,) = complete(fence, step, call())
        for _ in ("requested", "running"):
            with pytest.raises(IllegalTransition):
                transitions.start_provider_step(fence, make.request_facts())
            if tool.state == WorkStep.State.REQUESTED:
                tool = transitions.start_step(fence, tool.pk)
        transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED, result="x")

        assert transitions.start_provider_step(fence, make.request_facts()).sequence == 2

    def test_the_32nd_request_is_the_last_over_all_generations(
        self, job: WorkJob, fence: Fence
    ) -> None:
        make.WorkProviderStepFactory.create_batch(32, job=job, completed=True)

        with pytest.raises(BoundExceeded) as bound:
            transitions.start_provider_step(fence, make.request_facts())
        assert bound.value.code == "provider_step_limit_reached"

    def test_what_a_response_said_is_kept_whole(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        assert complete(fence, step, text="Let me s\u00e9e \x00.", anomaly_count=2) == []

        step.refresh_from_db()
        assert (step.state, step.response_id, step.usage) == (
            "completed",
            "r1",
            {"input_tokens": 3},
        )
        assert (step.text, step.anomaly_count) == ("Let me s\u00e9e \ufffd.", 2)
        assert step.finished_at is not None

    def test_a_response_past_its_bound_is_not_stored(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        before = every_job_row()
        with pytest.raises(BoundExceeded) as bound:
            complete(fence, step, call(), text="\u00e9" * work_bounds.RESPONSE_TEXT_MAX_BYTES)

        assert bound.value.code == "response_too_large"
        assert every_job_row() == before

    def test_a_completion_delivered_again_returns_its_calls(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """failure H16"""
        first = complete(fence, step, call(1), call(2))
        run(fence, first[0])
        again = complete(fence, step, call(1), call(2))

        assert [tool.pk for tool in again] == [tool.pk for tool in first]
        assert [tool.state for tool in again] == ["succeeded", "requested"]
        assert WorkStep.objects.count() == 2

    def test_a_completed_step_does_not_complete_differently(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        complete(fence, step)
        with pytest.raises(IllegalTransition):
            complete(fence, step, response_id="another")

    def test_what_was_committed_is_found_again(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """After a commit of unknown outcome."""
        assert transitions.provider_step_at(fence, 1) == step
        assert transitions.provider_step_at(fence, 2) is None
        (tool,) = complete(fence, step, call())

        # what has ended is not sent
        assert transitions.provider_step_at(fence, 1) is None
        assert transitions.step_called(fence, "call-1") == tool
        assert transitions.step_called(fence, "call-2") is None
        assert transitions.steps_of(fence, step.pk) == [tool]


class TestCalls:
    def test_arguments_are_kept_verbatim_beside_their_canonical_digest(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """behaviour C1, D2"""
        (tool,) = complete(fence, step, call(arguments='{ "b":1, "a" : "é" }'))

        assert tool.arguments == '{ "b":1, "a" : "é" }'
        assert tool.arguments_digest == digest('{"a":"é","b":1}')
        assert (tool.state, tool.sequence) == ("requested", 1)

    def test_the_same_call_twice_is_one_step(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """behaviour D1"""
        tools = complete(fence, step, call(1), call(1, arguments='{"q":1}'), call(2))

        assert [tool.sequence for tool in tools] == [1, 2]
        assert WorkStep.objects.count() == 2

    def test_a_later_response_that_repeats_a_call_gets_its_outcome(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        run(fence, complete(fence, step, call())[0])
        second = transitions.start_provider_step(fence, make.request_facts())
        (tool,) = complete(fence, second, call(), response_id="r2")

        assert (tool.state, tool.result) == ("succeeded", "found")
        with pytest.raises(IllegalTransition):
            transitions.start_step(fence, tool.pk)

    @pytest.mark.parametrize(
        "other", [{"item_id": "another"}, {"arguments": "{}"}, {"name": "webhook_post"}]
    )
    def test_one_id_for_two_calls_is_a_conflict(
        self, fence: Fence, step: WorkProviderStep, other: dict[str, str]
    ) -> None:
        """behaviour D1"""
        with pytest.raises(Refused) as refused:
            complete(fence, step, call(1), call(1, **other))

        assert refused.value.code == "provider_call_id_conflict"
        step.refresh_from_db()
        assert step.state == "started"
        assert not WorkStep.objects.exists()

    def test_the_65th_call_is_stored_failed_and_never_runs(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """behaviour C4"""
        tools = complete(fence, step, *(call(n) for n in range(65)))

        assert {tool.state for tool in tools[:64]} == {"requested"}
        assert (tools[64].state, tools[64].error_code) == ("failed", "tool_call_limit_reached")
        with pytest.raises(IllegalTransition):
            transitions.start_step(fence, tools[64].pk)

    def test_past_the_hard_stop_nothing_is_stored(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        with pytest.raises(BoundExceeded) as bound:
            complete(fence, step, *(call(n) for n in range(129)))

        assert bound.value.code == "tool_call_limit_reached"
        assert not WorkStep.objects.exists()

    @pytest.mark.parametrize(
        ("state", "code"),
        [("unavailable", "unknown_tool"), ("failed", "invalid_tool_arguments")],
    )
    def test_a_call_that_cannot_run_is_stored_ended(
        self, fence: Fence, step: WorkProviderStep, state: str, code: str
    ) -> None:
        refused = call(state=WorkStep.State(state), error_code=ErrorCode(code), result="no")
        (tool,) = complete(fence, step, refused)

        assert (tool.state, tool.error_code, tool.result) == (state, code, "no")
        assert tool.started_at is None
        assert tool.finished_at is not None

    def test_arguments_past_their_bound_are_stored_as_a_failed_call(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        """behaviour D2"""
        huge = '{"q": "' + "x" * bounds.TOOL_ARGUMENTS_MAX_BYTES + '"}'
        (tool,) = complete(fence, step, call(arguments=huge))

        assert (tool.state, tool.error_code) == ("failed", "invalid_tool_arguments")
        assert (tool.arguments, tool.arguments_digest) == ("", digest(huge.replace(" ", "")))

    def test_text_that_cannot_be_stored_is_repaired(
        self, fence: Fence, step: WorkProviderStep
    ) -> None:
        (tool,) = complete(fence, step, call(arguments='{"q": "\x00\ud800"}'))

        assert tool.arguments == '{"q": "\ufffd\ufffd"}'


class TestOutcomes:
    @pytest.fixture
    def tool(self, fence: Fence, step: WorkProviderStep) -> WorkStep:
        return complete(fence, step, call())[0]

    def test_a_call_starts_at_most_once(self, fence: Fence, tool: WorkStep) -> None:
        """behaviour D4"""
        started = transitions.start_step(fence, tool.pk)
        assert (started.state, started.started_at is not None) == ("running", True)

        for _ in range(2):
            with pytest.raises(IllegalTransition):
                transitions.start_step(fence, tool.pk)
            transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED, result="x")

    def test_the_same_outcome_twice_is_one_outcome(self, fence: Fence, tool: WorkStep) -> None:
        done = run(fence, tool)
        before = every_job_row()
        again = transitions.finish_step(
            fence, tool.pk, WorkStep.State.SUCCEEDED, result="found"
        )

        assert again == done
        assert every_job_row() == before

    @pytest.mark.parametrize(
        ("state", "result"), [("succeeded", "another"), ("failed", "found")]
    )
    def test_another_outcome_is_a_conflict(
        self, fence: Fence, tool: WorkStep, state: str, result: str
    ) -> None:
        run(fence, tool)
        with pytest.raises(Refused) as refused:
            transitions.finish_step(fence, tool.pk, WorkStep.State(state), result=result)

        assert refused.value.code == "tool_outcome_conflict"
        assert WorkStep.objects.get().result == "found"

    def test_what_was_not_started_has_no_success(self, fence: Fence, tool: WorkStep) -> None:
        with pytest.raises(IllegalTransition):
            transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED)

    @pytest.mark.parametrize(
        "whole",
        [
            "é" * bounds.TOOL_RESULT_MAX_BYTES,
            json.dumps(["🛶" * 650] * 500, ensure_ascii=False),
        ],
        ids=["one word", "500 items, 20 times the bound"],
    )
    def test_a_result_past_its_bound_is_cut_with_a_mark(
        self, fence: Fence, tool: WorkStep, whole: str
    ) -> None:
        """failures H39, H41: between characters, with a mark that says how much there was"""
        done = run(fence, tool, whole)

        assert len(done.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES
        kept, mark = done.result.rsplit("\n", 1)
        assert whole.startswith(kept)
        assert mark == f"[cut: the result was {len(whole.encode())} bytes]"
        assert (done.result_bytes, done.result_digest) == (len(whole.encode()), digest(whole))

    def test_a_failure_has_a_code(self, fence: Fence, tool: WorkStep) -> None:
        transitions.start_step(fence, tool.pk)
        done = transitions.finish_step(fence, tool.pk, WorkStep.State.FAILED)

        assert done.error_code == "tool_failed"

    def test_a_call_of_another_job_is_not_started(self, fence: Fence) -> None:
        foreign = make.WorkStepFactory.create()
        with pytest.raises(IllegalTransition):
            transitions.start_step(fence, foreign.pk)


@pytest.fixture
def tool(fence: Fence, step: WorkProviderStep) -> WorkStep:
    return complete(fence, step, call())[0]


def moves(fence: Fence, step: WorkProviderStep, tool: WorkStep) -> list[Callable[[], object]]:
    """Return everything an owner does to its steps."""
    return [
        lambda: transitions.start_provider_step(fence, make.request_facts()),
        lambda: complete(fence, step, call(2)),
        lambda: transitions.start_step(fence, tool.pk),
        lambda: transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED),
    ]


def revision_of(job: WorkJob) -> int:
    return Conversation.objects.get(pk=job.conversation_id).revision


@pytest.mark.parametrize("gone", ["released", "ended", "claimed again"])
def test_every_step_of_a_stale_owner_is_refused(
    job: WorkJob, fence: Fence, step: WorkProviderStep, tool: WorkStep, gone: str
) -> None:
    """failure H11"""
    if gone == "ended":
        transitions.finish_job(fence, WorkJob.State.FAILED, error_code=ErrorCode.INTERNAL_ERROR)
    else:
        transitions.release_own_jobs([fence])
    if gone == "claimed again":
        assert transitions.claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    before = every_job_row()

    for act in moves(fence, step, tool):
        with pytest.raises(StaleFence):
            act()
    assert every_job_row() == before


def test_after_a_cancel_nothing_starts_and_what_runs_has_its_outcome(
    job: WorkJob, fence: Fence, step: WorkProviderStep
) -> None:
    """behaviour O7"""
    running, waiting = complete(fence, step, call(1), call(2))
    transitions.start_step(fence, running.pk)
    transitions.request_cancel(job.person_id, job.pk)
    before = every_job_row()
    for act in (
        lambda: transitions.start_step(fence, waiting.pk),
        lambda: transitions.start_provider_step(fence, make.request_facts()),
    ):
        with pytest.raises(transitions.CancelRequested):
            act()
    assert every_job_row() == before

    done = transitions.finish_step(fence, running.pk, WorkStep.State.SUCCEEDED, result="found")
    assert (done.state, done.result) == ("succeeded", "found")


def test_the_adopter_starts_what_was_asked_for_and_asks_on(
    job: WorkJob, fence: Fence, step: WorkProviderStep, tool: WorkStep
) -> None:
    """behaviour O4"""
    transitions.release_own_jobs([fence])
    adopter = transitions.claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
    assert adopter is not None
    assert run(adopter, tool).generation == adopter.generation
    second = transitions.start_provider_step(adopter, make.request_facts())
    (another,) = complete(adopter, second, call(2), response_id="r2")

    assert (second.sequence, second.generation) == (2, adopter.generation)
    assert (another.sequence, another.generation) == (2, adopter.generation)


def test_every_move_is_seen_and_one_that_is_refused_is_not(
    job: WorkJob, fence: Fence, step: WorkProviderStep, tool: WorkStep
) -> None:
    """The revision is what a live view goes by."""
    seen = revision_of(job)
    for act in (
        lambda: transitions.start_step(fence, tool.pk),
        lambda: transitions.finish_step(fence, tool.pk, WorkStep.State.SUCCEEDED),
        lambda: transitions.start_provider_step(fence, make.request_facts()),
    ):
        act()
        assert revision_of(job) == seen + 1
        seen += 1
        with pytest.raises(IllegalTransition):
            transitions.start_step(fence, tool.pk)
        assert revision_of(job) == seen
