"""Giving a job back: the next generation waits, the clock goes on, and nobody is charged."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from recovery.bounds import PLANNED_RELEASES
from recovery.errors import StaleFence
from recovery.fences import Fence, claimed_mark
from tests import factories as make
from tests.factories import fence_of
from tests.support.job_transitions import adopted, call, requested
from tests.support.jobs import calls_of, every_job_row, report_text, require_job_terminal
from turns.models import Conversation
from work.models import WorkJob, WorkProviderStep
from work.transitions import (
    claim_job,
    finish_job,
    finish_step,
    release_own_jobs,
    request_cancel,
    start_step,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


def seconds_left(job: WorkJob, column: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT extract(epoch FROM {column} - now()) FROM work_workjob WHERE id = %s",
            [job.pk],
        )
        return float(cursor.fetchone()[0])


def test_a_job_given_back_waits_under_the_next_generation(job: WorkJob) -> None:
    fence, deadline = fence_of(job), job.deadline_at
    revision = Conversation.objects.get().revision

    assert release_own_jobs([fence]) == [job.pk]

    job.refresh_from_db()
    assert (job.state, job.owner, job.claim_token) == ("queued", None, None)
    assert (job.generation, job.write_mark) == (2, claimed_mark(2))
    assert (job.attempts, job.planned_releases) == (1, 1)
    assert job.deadline_at == deadline
    assert seconds_left(job, "queue_deadline_at") == pytest.approx(300, abs=5)
    assert Conversation.objects.get().revision == revision + 1
    with pytest.raises(StaleFence):
        finish_job(fence, WorkJob.State.COMPLETED)


def test_nobody_waits_for_an_adopter_past_the_jobs_own_time() -> None:
    soon = Now() + timedelta(seconds=20)
    job = make.WorkJobFactory.create(running=True, deadline_at=soon)

    release_own_jobs([fence_of(job)])

    job.refresh_from_db()
    assert job.queue_deadline_at == job.deadline_at


def test_what_was_not_started_waits_along(job: WorkJob) -> None:
    fence = fence_of(job)
    done, ran, waits = requested(fence, call("one"), call("two"), call("three"))
    for step in (done, ran):
        start_step(fence, step.pk)
    finish_step(fence, done.pk, done.State.SUCCEEDED, result="found")

    release_own_jobs([fence])

    assert calls_of(job) == [
        ("succeeded", ""),
        ("interrupted", "outcome_unknown"),
        ("requested", ""),
    ]
    waits.refresh_from_db()
    assert (waits.generation, waits.write_mark) == (2, claimed_mark(2))


def test_a_request_under_way_is_lost_with_its_answer(job: WorkJob) -> None:
    make.WorkProviderStepFactory.create(job=job)

    release_own_jobs([fence_of(job)])

    step = WorkProviderStep.objects.get()
    assert (step.state, step.error_code, step.generation) == (
        "interrupted", "runtime_stopped", 1,
    )  # fmt: skip


def test_only_what_a_claim_still_holds_is_given_back(job: WorkJob) -> None:
    stale = fence_of(job)
    adopter = adopted(job)
    before = every_job_row()

    assert release_own_jobs([stale, Fence(999_999, 1, stale.token)]) == []
    assert release_own_jobs([]) == []

    assert every_job_row() == before
    assert release_own_jobs([stale, adopter]) == [job.pk]


def test_a_planned_release_is_not_charged_to_the_adoptions(job: WorkJob) -> None:
    """Twenty deploys, then three dead workers, and it is still adopted."""
    fence = fence_of(job)
    for _ in range(PLANNED_RELEASES):
        assert release_own_jobs([fence]) == [job.pk]
        claimed = claim_job(job.pk, owner=make.RuntimeFactory.create().pk)
        assert claimed is not None
        fence = claimed
    for _ in range(3):
        fence = adopted(job)

    job.refresh_from_db()
    assert (job.state, job.attempts, job.planned_releases) == ("running", 24, 20)
    assert fence.generation == 1 + 2 * 23


def test_after_twenty_planned_releases_the_job_ends() -> None:
    job = make.WorkJobFactory.create(
        running=True, generation=41, attempts=21, planned_releases=PLANNED_RELEASES
    )

    assert release_own_jobs([fence_of(job)]) == []

    require_job_terminal(job)
    assert (job.state, job.error_code) == ("interrupted", "runtime_stopped")
    assert "It was started 21 times." in report_text(job)


def test_a_job_asked_to_stop_is_cancelled_instead(job: WorkJob) -> None:
    request_cancel(job.person_id, job.pk)

    assert release_own_jobs([fence_of(job)]) == []

    require_job_terminal(job)
    assert (job.state, job.error_code) == ("cancelled", "cancelled")


def test_a_job_whose_time_is_over_ends_instead() -> None:
    job = make.WorkJobFactory.create(overdue=True)

    assert release_own_jobs([fence_of(job)]) == []

    require_job_terminal(job)
    assert (job.state, job.error_code) == ("budget_exhausted", "deadline_passed")


def test_many_are_given_back_at_once() -> None:
    jobs = make.WorkJobFactory.create_batch(3, running=True)
    cancelled = make.WorkJobFactory.create(cancel_requested=True)

    released = release_own_jobs([fence_of(job) for job in [*jobs, cancelled]])

    assert released == [job.pk for job in jobs]
    assert WorkJob.objects.filter(state="queued").count() == 3
