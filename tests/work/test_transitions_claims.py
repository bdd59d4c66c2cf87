"""Claiming: one owner, one generation more, one clock; and what an adopter takes over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from recovery.errors import StaleFence
from recovery.fences import Fence, claimed_mark
from recovery.models import Runtime
from recovery.switches import State, set_release
from tests import factories as make
from tests.factories import fence_of
from tests.support.jobs import every_job_row
from turns.models import Conversation
from work.models import WorkJob, WorkStep
from work.recovery import WorkRecovery
from work.transitions import (
    claim_job,
    claim_jobs,
    claim_under,
    claims_of,
    finish_job,
    request_cancel,
    requested_steps,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> UUID:
    return make.RuntimeFactory.create().pk


def held(fence: Fence | None) -> Fence:
    assert fence is not None
    return fence


def wall_clock(job: WorkJob) -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM deadline_at - claimed_at) FROM work_workjob "
            "WHERE id = %s",
            [job.pk],
        )
        return float(cursor.fetchone()[0])


def test_a_claim_owns_the_job_under_the_next_generation(owner: UUID) -> None:
    job = make.WorkJobFactory.create()
    revision = Conversation.objects.get().revision

    fence = held(claim_job(job.pk, owner=owner))

    job.refresh_from_db()
    assert (job.state, job.owner, job.claim_token) == ("running", owner, fence.token)
    assert (job.generation, job.write_mark, job.attempts) == (1, claimed_mark(1), 1)
    assert fence == Fence(job.pk, 1, fence.token)
    assert wall_clock(job) == 600
    assert Conversation.objects.get().revision == revision + 1


def test_a_claim_is_found_again_by_its_token(owner: UUID) -> None:
    """behaviour of a connection that was lost during the commit"""
    token = uuid4()
    fence = claim_job(make.WorkJobFactory.create().pk, owner=owner, token=token)

    assert claim_under(token) == fence
    assert claims_of(owner) == [fence]
    finish_job(held(fence), WorkJob.State.COMPLETED)
    assert claim_under(token) is None
    assert claims_of(owner) == []


@pytest.mark.parametrize(
    "state",
    [
        {"running": True},
        {"completed": True},
        {"failed": True},
        {"cancelled": True},
        {"interrupted": True},
        {"budget_exhausted": True},
    ],
    ids=lambda state: next(iter(state)),
)
def test_what_does_not_wait_is_not_claimed(owner: UUID, state: dict[str, Any]) -> None:
    """A hint that is delivered again changes nothing."""
    job = make.WorkJobFactory.create(**state)
    before = every_job_row()

    assert claim_job(job.pk, owner=owner) is None
    assert claim_job(job.pk + 1, owner=owner) is None
    assert claim_jobs(owner=owner, limit=5) == []

    assert every_job_row() == before


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize(
    "obstacle", ["dead_runtime", "unknown_runtime", "disabled", "another_host"]
)
def test_who_may_not_run_the_job_does_not_claim_it(
    owner: UUID, obstacle: str, released: bool
) -> None:
    job = make.WorkJobFactory.create(released=released, coding=True)
    match obstacle:
        case "dead_runtime":
            owner = make.RuntimeFactory.create(lost=True).pk
        case "unknown_runtime":
            owner = uuid4()
        case "disabled":
            set_release("work", State.DISABLED)
        case "another_host":
            owner = make.RuntimeFactory.create(host_id="another").pk
    before = every_job_row()

    assert claim_job(job.pk, owner=owner) is None
    assert claim_jobs(owner=owner, limit=5) == []

    assert every_job_row() == before


def test_a_job_whose_time_is_over_is_not_claimed_again(owner: UUID) -> None:
    past = Now() - timedelta(seconds=1)
    job = make.WorkJobFactory.create(released=True, deadline_at=past)
    before = every_job_row()

    assert claim_job(job.pk, owner=owner) is None
    assert claim_jobs(owner=owner, limit=5) == []

    assert every_job_row() == before


def test_while_work_drains_what_was_admitted_is_claimed(owner: UUID) -> None:
    job = make.WorkJobFactory.create()
    set_release("work", State.DRAINING)
    assert claim_job(job.pk, owner=owner)


def test_a_coding_job_is_claimed_on_its_own_host(owner: UUID) -> None:
    job = make.WorkJobFactory.create(coding=True)
    assert job.host_id == Runtime.objects.get(pk=owner).host_id
    assert claim_job(job.pk, owner=owner)


def test_an_adopter_takes_over_what_was_not_started_and_nothing_else(owner: UUID) -> None:
    """behaviour O4: outcomes stay, what ran is unknown, what waited is the adopter's"""
    job = make.WorkJobFactory.create(orphaned=True)
    done = make.WorkStepFactory.create(job=job, succeeded=True)
    ran = make.WorkStepFactory.create(job=job, provider_step=done.provider_step, running=True)
    waits = make.WorkStepFactory.create(job=job, provider_step=done.provider_step)
    WorkRecovery().settle_orphans()

    fence = held(claim_job(job.pk, owner=owner))

    job.refresh_from_db()
    assert (fence.generation, job.attempts, job.planned_releases) == (3, 2, 0)
    assert [step.pk for step in requested_steps(fence)] == [waits.pk]
    told = WorkStep.objects.order_by("sequence")
    assert list(told.values_list("pk", "state", "error_code", "generation")) == [
        (done.pk, "succeeded", "", 1),
        (ran.pk, "interrupted", "outcome_unknown", 1),
        (waits.pk, "requested", "", 3),
    ]


def test_a_claim_closes_what_a_release_left_open(owner: UUID) -> None:
    """However a row came to be so, no two generations have an open step."""
    job = make.WorkJobFactory.create(running=True)
    asked = make.WorkProviderStepFactory.create(job=job)
    ran = make.WorkStepFactory.create(
        job=job, provider_step__sequence=2, provider_step__completed=True, running=True
    )
    WorkJob.objects.update(
        state="queued", owner=None, claim_token=None, generation=2, write_mark=claimed_mark(2)
    )

    assert claim_job(job.pk, owner=owner)

    asked.refresh_from_db()
    ran.refresh_from_db()
    assert (asked.state, asked.error_code) == ("interrupted", "runtime_lost")
    assert (ran.state, ran.error_code) == ("interrupted", "outcome_unknown")


def test_the_clock_of_an_adopted_job_goes_on(owner: UUID) -> None:
    job = make.WorkJobFactory.create()
    first = make.RuntimeFactory.create()
    claim_job(job.pk, owner=first.pk)
    deadline = WorkJob.objects.get().deadline_at
    Runtime.objects.filter(pk=first.pk).update(
        stopped_at=job.created_at, stop_reason="runtime_lost"
    )
    WorkRecovery().settle_orphans()

    claim_job(job.pk, owner=owner)

    job.refresh_from_db()
    assert job.attempts == 2
    assert job.deadline_at == deadline


def test_many_are_claimed_at_once_the_oldest_first(owner: UUID) -> None:
    jobs = make.WorkJobFactory.create_batch(4)
    jobs.append(make.WorkJobFactory.create(conversation=jobs[0].conversation,
                                           person=jobs[0].person))  # fmt: skip

    first = claim_jobs(owner=owner, limit=3)
    rest = claim_jobs(owner=owner, limit=3)

    assert [f.pk for f in sorted(first, key=lambda f: f.pk)] == [job.pk for job in jobs[:3]]
    assert {f.pk for f in rest} == {job.pk for job in jobs[3:]}
    assert len({f.token for f in [*first, *rest]}) == 5
    for fence in [*first, *rest]:
        assert fence == fence_of(WorkJob.objects.get(pk=fence.pk))
    assert {f.pk for f in claims_of(owner)} == {job.pk for job in jobs}


def test_a_claim_of_many_takes_over_released_jobs(owner: UUID) -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    waits = make.WorkStepFactory.create(job=job)
    WorkRecovery().settle_orphans()

    [fence] = claim_jobs(owner=owner, limit=1)

    assert fence.generation == 3
    assert [step.pk for step in requested_steps(fence)] == [waits.pk]


def test_a_cancelled_job_is_claimed_by_nobody(owner: UUID) -> None:
    """failure H21: a cancel between two attempts is final"""
    job = make.WorkJobFactory.create(released=True)
    request_cancel(job.person_id, job.pk)

    assert claim_job(job.pk, owner=owner) is None
    job.refresh_from_db()
    assert (job.state, job.generation) == ("cancelled", 2)


def test_a_waiting_job_that_somebody_asked_to_stop_is_claimed_by_nobody(owner: UUID) -> None:
    """failure H21: whoever wrote the request past the transition that would have ended it"""
    fresh = make.WorkJobFactory.create()
    released = make.WorkJobFactory.create(released=True)
    WorkJob.objects.update(cancel_requested_at=Now(), write_mark=F("write_mark") + 1)

    assert claim_job(fresh.pk, owner=owner) is None
    assert claim_job(released.pk, owner=owner) is None
    assert claim_jobs(owner=owner, limit=10) == []


def test_the_fence_of_an_older_claim_is_stale(owner: UUID) -> None:
    """failure H11: with the right generation and another claim's token, too"""
    job = make.WorkJobFactory.create()
    fence = held(claim_job(job.pk, owner=owner))
    for stale in (Fence(job.pk, 0, fence.token), Fence(job.pk, 1, uuid4())):
        with pytest.raises(StaleFence):
            finish_job(stale, WorkJob.State.COMPLETED)
    assert finish_job(fence, WorkJob.State.COMPLETED).state == "completed"
