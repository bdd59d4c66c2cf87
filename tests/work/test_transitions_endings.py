"""Ending: with a report where it completed, with a notice where it did not, and once."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, bury_worker, call, complete, requested
from tests.support.jobs import calls_of, every_job_row, report_text, require_job_terminal, shown
from turns.digests import digest
from turns.models import Conversation, Message
from work.models import JobReport, WorkJob, WorkProviderStep
from work.transitions import (
    append_report,
    checkpoint_workspace,
    finish_job,
    finish_jobs,
    finish_step,
    request_cancel,
    start_provider_step,
    start_step,
)

pytestmark = pytest.mark.django_db

State = WorkJob.State


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


def test_a_completed_job_shows_its_report_as_a_message(job: WorkJob) -> None:
    """behaviour O1, O2: linked both ways, visible to later turns"""
    fence = fence_of(job)
    [step] = requested(fence)
    start_step(fence, step.pk)
    finish_step(fence, step.pk, step.State.SUCCEEDED, result="found")
    complete(fence, start_provider_step(fence, request_facts()))
    report = append_report(fence, "Found it.")

    ended = finish_job(fence, State.COMPLETED)

    job.refresh_from_db()
    assert (ended.state, ended.error_code, ended.pk) == ("completed", "", job.pk)
    assert (job.state, job.error_code, job.finished_at) == ("completed", "", ended.finished_at)
    message = Message.objects.get()
    assert (message.role, message.state, message.text) == ("assistant", "complete", "Found it.")
    assert message.digest == digest("Found it.")
    assert message.conversation_id == job.conversation_id
    assert JobReport.objects.get().shown_by.message_id == message.pk
    assert report.text == report_text(job)
    assert job.ended_revision == Conversation.objects.get().revision
    assert ended.goal == "Find out."  # what the statement did not return is read on demand


def test_a_job_without_a_report_completes_without_a_message(job: WorkJob) -> None:
    finish_job(fence_of(job), State.COMPLETED)
    assert not Message.objects.exists()


@pytest.mark.parametrize("open_step", ["requested", "running", "asked"])
def test_a_job_with_an_open_step_does_not_complete(job: WorkJob, open_step: str) -> None:
    fence = fence_of(job)
    if open_step == "asked":
        start_provider_step(fence, request_facts())
    else:
        [step] = requested(fence)
        if open_step == "running":
            start_step(fence, step.pk)
    append_report(fence, "Found it.")
    before = every_job_row()

    with pytest.raises(IllegalTransition):
        finish_job(fence, State.COMPLETED)
    assert finish_jobs([fence], State.COMPLETED) == []

    assert every_job_row() == before


def test_an_ended_job_does_not_end_again(job: WorkJob) -> None:
    fence = fence_of(job)
    finish_job(fence, State.COMPLETED)
    before = every_job_row()
    for state in (State.COMPLETED, State.FAILED):
        with pytest.raises(StaleFence):
            finish_job(fence, state)
    assert every_job_row() == before


@pytest.mark.parametrize(
    ("state", "code", "kept", "opening"),
    [
        (State.FAILED, ErrorCode.PROVIDER_UNAVAILABLE, "provider_unavailable",
         "This job failed. The model service is not available."),
        (State.FAILED, None, "internal_error",
         "This job failed. Something went wrong on our side."),
        (State.INTERRUPTED, ErrorCode.RUNTIME_STOPPED, "runtime_stopped",
         "This job was interrupted. The service was restarted before this work finished."),
        (State.BUDGET_EXHAUSTED, None, "budget_exhausted",
         "This job ended before it was done. It used up the requests and tool calls"),
        (State.BUDGET_EXHAUSTED, ErrorCode.DEADLINE_PASSED, "deadline_passed",
         "This job ended before it was done. This took longer than the time allowed."),
        (State.CANCELLED, None, "cancelled", "This job was cancelled."),
    ],
)  # fmt: skip
def test_a_job_that_did_not_complete_says_so(
    job: WorkJob, state: WorkJob.State, code: ErrorCode | None, kept: str, opening: str
) -> None:
    ended = finish_job(fence_of(job), state, error_code=code)

    assert (ended.state, ended.error_code) == (state, kept)
    assert report_text(ended).startswith(opening)
    assert JobReport.objects.get().kind == "notice"
    assert ended.ended_revision == Conversation.objects.get().revision
    require_job_terminal(job)


def test_what_is_open_ends_with_the_job(job: WorkJob) -> None:
    fence = fence_of(job)
    steps = requested(fence, *(call(f"call-{n}") for n in range(5)))
    for step in steps[:4]:
        start_step(fence, step.pk)
    finish_step(fence, steps[0].pk, steps[0].State.SUCCEEDED)
    finish_step(fence, steps[1].pk, steps[1].State.FAILED)

    finish_job(fence, State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)

    assert calls_of(job) == [
        ("succeeded", ""),
        ("failed", "tool_failed"),
        ("interrupted", "outcome_unknown"),
        ("interrupted", "outcome_unknown"),
        ("cancelled", "not_started"),
    ]
    assert "Of its tool calls, 1 succeeded, 1 did not succeed, 1 was not started." in (
        report_text(job)
    )
    assert "For 2 tool calls it is not known whether they took effect." in report_text(job)


def test_the_notice_counts_the_unknown_outcomes_of_every_generation(job: WorkJob) -> None:
    first = fence_of(job)
    lost, waits = requested(first, call("lost"), call("waits"))
    start_step(first, lost.pk)
    second = adopted(job)
    start_step(second, waits.pk)

    finish_job(second, State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)

    assert calls_of(job) == [("interrupted", "outcome_unknown")] * 2
    assert "For 2 tool calls it is not known whether they took effect." in report_text(job)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (State.FAILED, "failed"),
        (State.CANCELLED, "cancelled"),
        (State.INTERRUPTED, "interrupted"),
        (State.BUDGET_EXHAUSTED, "interrupted"),
    ],
)
def test_the_request_under_way_ends_with_the_job(
    job: WorkJob, state: WorkJob.State, kept: str
) -> None:
    fence = fence_of(job)
    start_provider_step(fence, request_facts())

    finish_job(fence, state, response_id="resp", usage={"total": 5})

    step = WorkProviderStep.objects.get()
    assert (step.state, step.response_id, step.usage) == (kept, "resp", {"total": 5})


def test_a_used_up_budget_keeps_what_was_said_last(job: WorkJob) -> None:
    fence = fence_of(job)
    complete(fence, start_provider_step(fence, request_facts()), text="First.")
    complete(
        fence, start_provider_step(fence, request_facts()), text="As far as I got.",
        response_id="second",
    )  # fmt: skip
    complete(fence, start_provider_step(fence, request_facts()), text="", response_id="third")

    finish_job(fence, State.BUDGET_EXHAUSTED)

    assert report_text(job).endswith("What it said last:\n\nAs far as I got.")


def test_a_notice_is_cut_at_the_bound_of_reports(job: WorkJob) -> None:
    fence = fence_of(job)
    complete(fence, start_provider_step(fence, request_facts()), text="é" * 30_000)

    finish_job(fence, State.BUDGET_EXHAUSTED)

    report = JobReport.objects.get()
    assert len(report.text.encode()) <= 8_000
    assert report.byte_count > 60_000
    assert report.text.endswith(f"[cut: the report was {report.byte_count} bytes]")


def test_the_notice_of_a_coding_job_names_its_place_and_its_restarts() -> None:
    """behaviour O8"""
    job = make.WorkJobFactory.create(coding=True, running=True, agent="careful")
    fence = adopted(job)
    checkpoint_workspace(fence, "c0ffee", "holdfast/job-1")
    job.refresh_from_db()
    make.WorkStepFactory.create(job=job, effect="reversible", succeeded=True)

    finish_job(fence, State.INTERRUPTED, error_code=ErrorCode.RUNTIME_LOST)

    assert job.computer is not None
    assert report_text(job).startswith(
        "This job was interrupted. The process doing this work died before it finished. "
        "It was started 2 times. Of its tool calls, 1 succeeded. "
        f"It worked on {job.computer.name} with careful. "
        "Its branch is holdfast/job-1, begun at c0ffee. What it had not committed is "
        "committed there as its working copy is taken down, if that is still to be had; a "
        "branch on which nothing happened is removed."
    )


def test_after_a_cancel_every_end_is_cancelled(job: WorkJob) -> None:
    """failure H27: the result written before stays as evidence, and is not shown"""
    fence = fence_of(job)
    append_report(fence, "Found it.")
    request_cancel(job.person_id, job.pk)

    ended = finish_job(fence, State.COMPLETED)

    assert (ended.state, ended.error_code) == ("cancelled", "cancelled")
    assert [m.startswith("This job was cancelled.") for m in shown(job)] == [True]
    assert set(JobReport.objects.values_list("kind", flat=True)) == {"result", "notice"}
    assert finish_jobs([fence], State.COMPLETED) == []


def test_many_complete_at_once() -> None:
    jobs = make.WorkJobFactory.create_batch(3, running=True)
    jobs.append(
        make.WorkJobFactory.create(
            running=True, person=jobs[0].person, conversation=jobs[0].conversation
        )
    )
    reported, cancelled = jobs[0], make.WorkJobFactory.create(cancel_requested=True)
    append_report(fence_of(reported), "Found it.")
    fences = [fence_of(job) for job in [*jobs, cancelled]]

    ended = finish_jobs(fences, State.COMPLETED)

    assert {job.pk for job in ended} == {job.pk for job in jobs}
    assert shown(reported) == ["Found it."]
    for job in jobs:
        job.refresh_from_db()
        assert job.state == "completed"
        assert job.ended_revision == job.conversation.revision
    cancelled.refresh_from_db()
    assert cancelled.state == "running"
    assert finish_jobs(fences, State.COMPLETED) == []


# --- cancelling -------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "released", "orphaned"])
def test_a_job_nobody_works_on_is_cancelled_at_once(state: str) -> None:
    """failure H21, H28"""
    job = make.WorkJobFactory.create(**({} if state == "queued" else {state: True}))
    if state == "orphaned":
        bury_worker(job)

    cancelled, accepted = request_cancel(job.person_id, job.pk)

    assert (cancelled.state, cancelled.error_code, accepted) == ("cancelled", "cancelled", True)
    assert cancelled.cancel_requested_at is not None
    assert report_text(job).startswith("This job was cancelled.")
    assert ("It had not begun." in report_text(job)) == (state == "queued")
    require_job_terminal(job)


def test_a_running_job_is_asked_to_stop(job: WorkJob) -> None:
    asked, accepted = request_cancel(job.person_id, job.pk)

    assert (asked.state, accepted) == ("running", True)
    since = asked.cancel_requested_at
    assert since is not None
    again, accepted = request_cancel(job.person_id, job.pk)
    assert (again.cancel_requested_at, accepted) == (since, True)


@pytest.mark.parametrize(
    "state", ["completed", "failed", "cancelled", "interrupted", "budget_exhausted"]
)
def test_after_the_end_a_cancel_tells_the_end(state: str) -> None:
    job = make.WorkJobFactory.create(**{state: True})
    before = every_job_row()

    ended, accepted = request_cancel(job.person_id, job.pk)

    assert (ended.state, accepted) == (state, False)
    assert every_job_row() == before


@pytest.mark.parametrize("whose", ["nobodys", "anothers"])
def test_an_unknown_and_a_foreign_job_look_the_same(job: WorkJob, whose: str) -> None:
    stranger: Any = make.UserFactory.create()
    before = every_job_row()
    with pytest.raises(Refused) as refused:
        request_cancel(stranger.pk, job.pk if whose == "anothers" else 999_999)
    assert refused.value.code == ErrorCode.NOT_FOUND
    assert every_job_row() == before
