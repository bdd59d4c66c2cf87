"""A job's timeline tells of every generation, and of whose it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db.models.functions import Now

from recovery.fences import Fence
from recovery.models import Runtime
from recovery.timeline import Moment, in_order
from tests import factories as make
from tests.support.runtimes import watch_database
from turns.transitions import RequestedCall
from work import transitions
from work.models import WorkJob, WorkStep
from work.recovery import WorkRecovery
from work.timeline import timeline

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "a very private sentence"


def told(job: WorkJob) -> list[str]:
    job.refresh_from_db()
    return [
        f"{moment.what} [{moment.error_code}]" if moment.error_code else moment.what
        for moment in timeline(job)
    ]


def claim(job: WorkJob, runtime: Runtime) -> Fence:
    fence = transitions.claim_job(job.pk, owner=runtime.pk)
    assert fence is not None
    return fence


def bury(runtime: Runtime) -> None:
    Runtime.objects.filter(pk=runtime.pk).update(stopped_at=Now(), stop_reason="runtime_lost")


def ask(fence: Fence, *names: str) -> list[WorkStep]:
    step = transitions.start_provider_step(fence, make.request_facts())
    return transitions.complete_provider_step(
        fence,
        step.pk,
        response_id=None,
        usage=None,
        text=SECRET,
        calls=[
            RequestedCall(f"{name}-{step.sequence}", "", name, f'{{"q": "{SECRET}"}}')
            for name in names
        ],
    )


def test_it_tells_of_each_claim_release_step_and_report_and_whose_it_was() -> None:
    first, second, third = make.RuntimeFactory.create_batch(3)
    job = make.WorkJobFactory.create(goal=SECRET)
    watch_database()

    fence = claim(job, first)
    running, _ = ask(fence, "edit", "read")
    transitions.start_step(fence, running.pk)
    bury(first)
    assert WorkRecovery().settle_orphans().adopted == 1

    fence = claim(job, second)
    (waiting,) = transitions.requested_steps(fence)
    transitions.start_step(fence, waiting.pk)
    transitions.finish_step(fence, waiting.pk, WorkStep.State.SUCCEEDED, result=SECRET)
    transitions.release_own_jobs([fence])

    fence = claim(job, third)
    transitions.append_report(fence, SECRET)
    transitions.finish_job(fence, WorkJob.State.COMPLETED)

    assert told(job) == [
        "admitted",
        f"claimed by {first.pk}, generation 1",
        "provider step 1 started, generation 1, 12 bytes sent",
        "provider step 1 completed",
        "tool step 1 (edit) requested",
        "tool step 2 (read) requested",
        "tool step 1 (edit) started, generation 1",
        "tool step 1 (edit) interrupted [outcome_unknown]",
        "released for adoption (runtime_lost), generation 1",
        f"claimed by {second.pk}, generation 3",
        "tool step 2 (read) started, generation 3",
        "tool step 2 (read) succeeded",
        "released for adoption (runtime_stopped), generation 3",
        f"claimed by {third.pk}, generation 5",
        f"result written, generation 5, {len(SECRET)} bytes",
        "job completed",
    ]


def test_a_released_job_that_waits_tells_who_had_it() -> None:
    runtime = make.RuntimeFactory.create()
    job = make.WorkJobFactory.create()
    fence = claim(job, runtime)
    bury(runtime)
    WorkRecovery().settle_orphans()

    assert told(job) == [
        "admitted",
        f"claimed by {runtime.pk}, generation 1",
        "released for adoption (runtime_lost), generation 1",
    ]
    assert fence.generation == 1


def test_an_end_by_recovery_is_told_with_its_cause_and_its_notice() -> None:
    job = make.WorkJobFactory.create(orphaned=True, attempts=4)
    WorkRecovery().settle_orphans()

    events = told(job)
    assert {
        "job interrupted [adoption_attempts_exhausted]",
        "recovery: interrupted (runtime_lost) [adoption_attempts_exhausted]",
    } <= set(events)
    assert any(event.startswith("notice written, generation 1, ") for event in events)


def test_a_cancel_is_told_before_the_end_it_brings() -> None:
    job = make.WorkJobFactory.create()
    transitions.request_cancel(job.person_id, job.pk)

    cancelled = told(job)
    assert cancelled.index("cancel requested") < cancelled.index("job cancelled [cancelled]")


def test_checkpoints_have_no_time_and_come_last_without_the_sessions_id() -> None:
    runtime = make.RuntimeFactory.create()
    job = make.WorkJobFactory.create(coding=True)
    fence = claim(job, runtime)
    transitions.checkpoint_workspace(fence, "c0ffee", "holdfast/job-1")
    transitions.checkpoint_session(fence, SECRET, 12)

    assert told(job)[-2:] == [
        "worktree of branch holdfast/job-1, from commit c0ffee",
        "external session kept, read up to 12",
    ]


def test_moments_are_in_order_and_those_of_one_instant_as_they_were_told() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    told = [
        Moment(None, "undated"),
        Moment(at + timedelta(seconds=1), "third"),
        Moment(at, "first"),
        Moment(at, "second"),
    ]
    assert [moment.what for moment in in_order(told)] == ["first", "second", "third", "undated"]
