"""WorkRecovery: which waiting jobs are hinted at, when, and how many at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db.models import F
from django.db.models.functions import Now

from recovery.switches import State, set_release
from tests import factories as make
from tests.support.job_transitions import recover
from work.models import WorkJob
from work.recovery import HINTS_PER_SECOND, WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)


def test_waiting_jobs_are_hinted_at_again(hints: list[int]) -> None:
    due = make.WorkJobFactory.create(next_dispatch_at=Now())
    make.WorkJobFactory.create()

    report = recover()

    assert (report.redispatched, hints) == (1, [due.pk])
    due.refresh_from_db()
    assert due.dispatch_count == 1


def test_a_released_job_is_hinted_at_once_and_then_with_patience(hints: list[int]) -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    recover()
    recover()
    assert hints == [job.pk]
    WorkJob.objects.update(next_dispatch_at=Now(), write_mark=F("write_mark") + 1)
    recover()
    assert hints == [job.pk, job.pk]


def test_while_work_is_disabled_orphans_are_released_and_nothing_is_hinted_again(
    hints: list[int],
) -> None:
    make.WorkJobFactory.create(next_dispatch_at=Now())
    make.WorkJobFactory.create(orphaned=True)
    set_release("work", State.DISABLED)

    report = recover()

    assert (report.adopted, report.redispatched) == (1, 0)


def test_of_many_jobs_that_wait_the_first_are_hinted_at(hints: list[int]) -> None:
    """Workers look for the others; no pass takes them up again at once."""
    jobs = make.WorkJobFactory.create_batch(HINTS_PER_SECOND + 1, next_dispatch_at=Now())

    assert recover().redispatched == len(jobs)

    assert hints == [job.pk for job in jobs[:HINTS_PER_SECOND]]
    assert set(WorkJob.objects.values_list("dispatch_count", flat=True)) == {1}


def test_batches_of_one_second_share_their_hints(
    hints: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = 1_000.0
    monkeypatch.setattr("work.recovery.time", SimpleNamespace(monotonic=lambda: second))
    recovery = WorkRecovery()

    recovery.dispatch(range(HINTS_PER_SECOND - 1))
    recovery.dispatch(range(1_000, 2_000))
    assert hints == [*range(HINTS_PER_SECOND - 1), 1_000]

    second += 1
    recovery.dispatch([2_000])
    assert hints[-1] == 2_000


def test_jobs_are_taken_up_by_their_age_whoever_had_them(hints: list[int]) -> None:
    owners = [make.RuntimeFactory.create(lost=True) for _ in range(2)]
    jobs = [make.WorkJobFactory.create(running=True, runtime=owners[n % 2]) for n in range(4)]

    assert WorkRecovery().settle_orphans(limit=2).adopted == 2
    recover()

    assert hints == [job.pk for job in jobs]
