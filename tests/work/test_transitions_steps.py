"""Requests and calls of a job: stored before the effect, started once, one outcome."""

from __future__ import annotations

import pytest

from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition, Refused
from recovery.fences import Fence
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, call, complete, requested
from tests.support.jobs import every_job_row
from turns.models import Conversation
from turns.transitions import CallOutcome
from work import bounds
from work.limits import JobLimits
from work.models import JobReport, WorkJob, WorkProviderStep, WorkStep
from work.transitions import (
    append_report,
    finish_step,
    last_provider_step,
    move_steps,
    provider_step_at,
    report_of,
    running_steps,
    start_provider_step,
    start_step,
    steps_of,
)

pytestmark = pytest.mark.django_db

State = WorkStep.State


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


@pytest.fixture
def fence(job: WorkJob) -> Fence:
    return fence_of(job)


# --- requests ---------------------------------------------------------------------------------


def test_a_request_is_stored_before_it_is_sent(job: WorkJob, fence: Fence) -> None:
    revision = Conversation.objects.get().revision

    step = start_provider_step(fence, request_facts(offers_tools=True))

    stored = WorkProviderStep.objects.get()
    assert step == stored
    assert (stored.state, stored.sequence, stored.generation) == ("started", 1, 1)
    assert (stored.model, stored.request_bytes, stored.offers_tools) == ("scripted", 12, True)
    assert (step.state, step.usage, step.started_at) == ("started", None, stored.started_at)
    assert provider_step_at(fence, 1) == stored
    assert Conversation.objects.get().revision == revision + 1


def test_what_a_response_said_and_asked_is_stored_together(fence: Fence) -> None:
    """behaviour O1"""
    step = start_provider_step(fence, request_facts())

    first, second = complete(fence, step, call("one"), call("two"))

    step.refresh_from_db()
    assert (step.state, step.text, step.usage) == ("completed", "Well. ", {"total": 3})
    assert (first.call_id, first.sequence, first.state) == ("one", 1, "requested")
    assert (second.call_id, second.sequence, second.generation) == ("two", 2, 1)
    assert steps_of(fence, step.pk) == [first, second]
    assert last_provider_step(fence) == step
    assert provider_step_at(fence, 1) is None


def test_completing_again_with_the_same_response_changes_nothing(fence: Fence) -> None:
    step = start_provider_step(fence, request_facts())
    first = complete(fence, step, call())

    again = complete(fence, step, call())

    assert [s.pk for s in again] == [s.pk for s in first]
    assert WorkStep.objects.count() == 1


def test_a_request_that_ended_differently_is_not_completed(fence: Fence) -> None:
    step = start_provider_step(fence, request_facts())
    complete(fence, step)
    with pytest.raises(IllegalTransition):
        complete(fence, step, response_id="another")


def test_no_request_starts_while_something_is_open(fence: Fence) -> None:
    start_provider_step(fence, request_facts())
    before = every_job_row()
    with pytest.raises(IllegalTransition):
        start_provider_step(fence, request_facts())
    assert every_job_row() == before


@pytest.mark.parametrize("state", ["requested", "running"])
def test_no_request_starts_while_a_call_is_open(fence: Fence, state: str) -> None:
    [step] = requested(fence)
    if state == "running":
        start_step(fence, step.pk)
    with pytest.raises(IllegalTransition):
        start_provider_step(fence, request_facts())


def test_requests_are_counted_over_all_generations() -> None:
    """failure H20: calls of the provider are bounded however often a worker dies"""
    budget = JobLimits(provider_steps=2).snapshot()
    job = make.WorkJobFactory.create(running=True, budget=budget)
    start_provider_step(fence_of(job), request_facts())
    adopter = adopted(job)
    last = start_provider_step(adopter, request_facts())
    complete(adopter, last)
    before = every_job_row()

    with pytest.raises(BoundExceeded) as refused:
        start_provider_step(adopter, request_facts())

    assert last.sequence == 2
    assert refused.value.code == ErrorCode.PROVIDER_STEP_LIMIT_REACHED
    assert every_job_row() == before
    assert list(WorkProviderStep.objects.order_by("sequence").values_list("state")) == [
        ("interrupted",),
        ("completed",),
    ]


def test_a_response_longer_than_allowed_is_refused(fence: Fence) -> None:
    step = start_provider_step(fence, request_facts())
    with pytest.raises(BoundExceeded) as refused:
        complete(fence, step, text="x" * (bounds.RESPONSE_TEXT_MAX_BYTES + 1))
    assert refused.value.code == ErrorCode.RESPONSE_TOO_LARGE
    step.refresh_from_db()
    assert step.state == "started"


# --- calls ------------------------------------------------------------------------------------


def test_a_call_that_cannot_run_is_stored_ended(fence: Fence) -> None:
    """behaviour Q4: a job that would start another"""
    [step] = requested(
        fence,
        call(
            state=State.REFUSED,
            error_code=ErrorCode.WORK_RECURSION_REFUSED,
            result="A job cannot start jobs.",
        ),
    )
    assert (step.state, step.error_code) == ("refused", "work_recursion_refused")
    assert step.result == "A job cannot start jobs."
    with pytest.raises(IllegalTransition):
        start_step(fence, step.pk)


def test_the_same_call_again_is_the_step_there(fence: Fence) -> None:
    """A completed provider call id is never executed again merely because it repeats."""
    [step] = requested(fence)
    start_step(fence, step.pk)
    finish_step(fence, step.pk, State.SUCCEEDED, result="found")

    [again] = requested(fence)

    assert (again.pk, again.state, again.result) == (step.pk, "succeeded", "found")
    with pytest.raises(IllegalTransition):
        start_step(fence, again.pk)
    responses = WorkProviderStep.objects.order_by("sequence")
    assert list(responses.values_list("repeats", flat=True)) == [[], [step.sequence]]


def test_the_same_call_id_for_another_call_is_a_conflict(fence: Fence) -> None:
    requested(fence, call(state=State.FAILED))
    step = start_provider_step(fence, request_facts())
    with pytest.raises(Refused) as refused:
        complete(fence, step, call(arguments='{"a": 2}'))
    assert refused.value.code == ErrorCode.PROVIDER_CALL_ID_CONFLICT


def test_calls_are_counted_over_all_generations() -> None:
    budget = JobLimits(tool_calls=2, tool_calls_hard_stop=3).snapshot()
    job = make.WorkJobFactory.create(running=True, budget=budget)
    [first, second] = requested(fence_of(job), call("one"), call("two"))
    adopter = adopted(job)
    for step in (first, second):
        start_step(adopter, step.pk)
        finish_step(adopter, step.pk, State.SUCCEEDED)

    [third] = requested(adopter, call("three"))
    with pytest.raises(BoundExceeded) as refused:
        requested(adopter, call("four"))

    assert (third.state, third.error_code) == ("failed", "tool_call_limit_reached")
    assert refused.value.code == ErrorCode.TOOL_CALL_LIMIT_REACHED


def test_a_call_starts_once(job: WorkJob, fence: Fence) -> None:
    [step] = requested(fence)
    revision = Conversation.objects.get().revision

    started = start_step(fence, step.pk)

    stored = WorkStep.objects.get()
    assert started == stored
    assert (started.state, started.started_at) == ("running", stored.started_at)
    assert (started.invocation_key, started.arguments) == (step.invocation_key, '{"a": 1}')
    assert Conversation.objects.get().revision == revision + 1
    before = every_job_row()
    with pytest.raises(IllegalTransition):
        start_step(fence, step.pk)
    assert every_job_row() == before


def test_an_outcome_is_stored_once(fence: Fence) -> None:
    [step] = requested(fence)
    start_step(fence, step.pk)

    finished = finish_step(fence, step.pk, State.SUCCEEDED, result="found")

    assert (finished.state, finished.error_code, finished.result) == ("succeeded", "", "found")
    assert finished == WorkStep.objects.get()
    before = every_job_row()
    assert finish_step(fence, step.pk, State.SUCCEEDED, result="found").pk == step.pk
    for state, result in ((State.SUCCEEDED, "something else"), (State.FAILED, "found")):
        with pytest.raises(Refused) as refused:
            finish_step(fence, step.pk, state, result=result)
        assert refused.value.code == ErrorCode.TOOL_OUTCOME_CONFLICT
    assert every_job_row() == before


def test_two_outcomes_of_one_call_are_a_conflict_and_neither_is_stored(fence: Fence) -> None:
    [step] = requested(fence)
    start_step(fence, step.pk)
    before = every_job_row()
    one, another = (
        CallOutcome.of(step.pk, State.SUCCEEDED, result=text) for text in ("one", "another")
    )

    with pytest.raises(Refused) as refused:
        move_steps(fence, ended=[one, another])

    assert refused.value.code == ErrorCode.TOOL_OUTCOME_CONFLICT
    assert every_job_row() == before
    move_steps(fence, ended=[one, one])
    assert WorkStep.objects.get().result == "one"


def test_an_outcome_told_twice_lets_the_next_call_start(fence: Fence) -> None:
    first, second = requested(fence, call("first"), call("second"))
    start_step(fence, first.pk)
    outcome = CallOutcome.of(first.pk, State.SUCCEEDED, result="found")

    [started] = move_steps(fence, ended=[outcome, outcome], starting=[second.pk])

    assert (started.pk, started.state) == (second.pk, "running")


def test_a_call_that_was_not_started_does_not_succeed(fence: Fence) -> None:
    [step] = requested(fence)
    with pytest.raises(IllegalTransition):
        finish_step(fence, step.pk, State.SUCCEEDED, result="found")
    assert finish_step(
        fence, step.pk, State.UNAVAILABLE, error_code=ErrorCode.UNKNOWN_TOOL
    ).state == "unavailable"  # fmt: skip


def test_a_result_past_its_bound_is_cut_with_a_mark(fence: Fence) -> None:
    [step] = requested(fence)
    start_step(fence, step.pk)

    finished = finish_step(fence, step.pk, State.SUCCEEDED, result="é" * 40_000)

    assert len(finished.result.encode()) <= 65_536
    assert finished.result.endswith("[cut: the result was 80000 bytes]")
    assert finished.result_bytes == 80_000


def test_a_step_of_another_job_is_not_touched(fence: Fence) -> None:
    other = make.WorkStepFactory.create()
    before = every_job_row()
    with pytest.raises(IllegalTransition):
        start_step(fence, other.pk)
    with pytest.raises(IllegalTransition):
        finish_step(fence, other.pk, State.FAILED)
    assert every_job_row() == before


def test_a_call_is_found_again_under_its_claim_alone(job: WorkJob, fence: Fence) -> None:
    [step] = requested(fence)
    assert running_steps(fence, [step.pk]) == []
    start_step(fence, step.pk)
    assert running_steps(fence, [step.pk]) == [step]
    adopter = adopted(job)
    assert running_steps(fence, [step.pk]) == running_steps(adopter, [step.pk]) == []


# --- reports ----------------------------------------------------------------------------------


def test_a_report_is_written_once(job: WorkJob, fence: Fence) -> None:
    """behaviour O2, O7"""
    report = append_report(fence, "  Found it. ")

    assert report == JobReport.objects.get() == report_of(job.pk)
    assert (report.text, report.kind, report.byte_count) == ("Found it.", "result", 9)
    before = every_job_row()
    assert append_report(fence, "Found it.").pk == report.pk
    with pytest.raises(IllegalTransition):
        append_report(fence, "Found something else.")
    assert every_job_row() == before


def test_an_adopter_may_repeat_the_report_that_is_there(job: WorkJob, fence: Fence) -> None:
    report = append_report(fence, "Found it.")
    assert append_report(adopted(job), "Found it.").pk == report.pk


def test_a_report_is_cut_at_the_jobs_bound() -> None:
    budget = JobLimits(report_bytes=100).snapshot()
    job = make.WorkJobFactory.create(running=True, budget=budget)

    report = append_report(fence_of(job), "é" * 500)

    assert len(report.text.encode()) <= 100
    assert report.text.endswith("[cut: the report was 1000 bytes]")
    assert report.byte_count == 1_000


@pytest.mark.parametrize("text", [" \n", "\u200b", "\u3164 \ufe0f"])
def test_a_report_without_a_word_is_refused(fence: Fence, text: str) -> None:
    with pytest.raises(Refused) as refused:
        append_report(fence, text)
    assert refused.value.code == ErrorCode.EMPTY_OUTPUT
