"""Recovery beside owner, cancel, claim and itself, in both orders: one wins, both tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db.models.functions import Now

from recovery.errors import StaleFence
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.factories import fence_of
from tests.races.jobs.moves import GateOn, cancelling, claiming, recover
from tests.support.job_transitions import bury_worker
from tests.support.jobs import every_job_row, require_job_terminal
from tests.support.rivals import Rival
from work.models import WorkJob
from work.recovery import WorkRecovery
from work.transitions import (
    checkpoint_session,
    finish_job,
    release_own_jobs,
    request_cancel,
    start_step,
)

pytestmark = pytest.mark.django_db(transaction=True)


class TestRecoveryAndOwner:
    def writes(self, job: WorkJob) -> dict[str, Callable[[], Any]]:
        fence, step = fence_of(job), make.WorkStepFactory.create(job=job)
        return {
            "finish": lambda: finish_job(fence, WorkJob.State.FAILED),
            "start": lambda: start_step(fence, step.pk),
            "checkpoint": lambda: checkpoint_session(fence, "session", 1),
            "release": lambda: release_own_jobs([fence]),
        }

    @pytest.mark.parametrize("write", ["finish", "start", "checkpoint", "release"])
    def test_recovery_first_the_old_owner_is_stale(
        self, orphan: WorkJob, gate_on: GateOn, write: str
    ) -> None:
        """failure H11"""
        writes = self.writes(orphan)
        with gate_on("step", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(writes[write]).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().adopted == 1
        if write == "release":
            assert second.result() == []
        else:
            assert isinstance(second.error(), StaleFence)
        orphan.refresh_from_db()
        assert (orphan.state, orphan.generation, orphan.planned_releases) == ("queued", 2, 0)

    @pytest.mark.parametrize("write", ["finish", "start", "checkpoint", "release"])
    def test_the_old_owner_first_recovery_waits_for_nobody(
        self, orphan: WorkJob, gate_on: GateOn, write: str
    ) -> None:
        writes = self.writes(orphan)
        with gate_on("job", orphan) as held:
            first = Rival(writes[write]).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        first.result()
        after = recover()
        orphan.refresh_from_db()
        if write == "finish":
            assert (after.examined, orphan.state) == (0, "failed")
        elif write == "release":
            assert (after.examined, orphan.state, orphan.generation) == (0, "queued", 2)
        else:
            assert (after.adopted, orphan.state, orphan.generation) == (1, "queued", 2)


class TestRecoveryAndCancel:
    def test_recovery_first_the_cancel_ends_the_released_job(
        self, orphan: WorkJob, gate_on: GateOn
    ) -> None:
        make.WorkStepFactory.create(job=orphan)
        with gate_on("step", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(cancelling(orphan)).until_it_waits()
            held.open()

        assert first.result().adopted == 1
        assert second.result()[0].state == "cancelled"
        require_job_terminal(orphan)
        assert orphan.generation == 2

    def test_cancel_first_recovery_finds_nothing(
        self, orphan: WorkJob, gate_on: GateOn
    ) -> None:
        """failure H30: nobody alive works on it, so the cancel itself ends it"""
        with gate_on("job", orphan) as held:
            first = Rival(cancelling(orphan)).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        assert first.result()[0].state == "cancelled"
        assert recover().examined == 0
        orphan.refresh_from_db()
        assert (orphan.state, orphan.generation) == ("cancelled", 1)

    def test_a_job_cancelled_between_look_and_lock_stays_cancelled(
        self, orphan: WorkJob
    ) -> None:
        """failure H30"""
        recovery, report = WorkRecovery(), RecoveryReport("work")
        selected = recovery._owned.look(limit=10)
        Rival(cancelling(orphan)).result()
        before = every_job_row()

        recovery._settle_batch(selected, report)

        assert (report.adopted, report.interrupted, report.failed) == (0, 0, 0)
        assert every_job_row() == before

    def test_a_cancel_of_a_living_worker_that_dies_is_seen_under_the_lock(
        self, job: WorkJob
    ) -> None:
        """failure H30: the request is on the row, the worker died before it could obey"""
        recovery, report = WorkRecovery(), RecoveryReport("work")
        request_cancel(job.person_id, job.pk)
        bury_worker(job)
        recovery._settle_batch(recovery._owned.look(limit=10), report)

        assert (report.adopted, report.interrupted) == (0, 1)
        job.refresh_from_db()
        assert (job.state, job.generation) == ("cancelled", 1)


class TestRecoveryAndClaim:
    def test_a_release_and_a_claim_of_the_job_do_not_mix(
        self, orphan: WorkJob, gate_on: GateOn
    ) -> None:
        """A hint from before the death: the claim finds it running, or released and whole."""
        step = make.WorkStepFactory.create(job=orphan)
        with gate_on("step", orphan) as held:
            first = Rival(recover).until_it_waits()
            assert Rival(claiming(orphan)).result() is None
            held.open()

        assert first.result().adopted == 1
        fence = claiming(orphan)()
        assert fence is not None
        assert start_step(fence, step.pk).generation == 3

    def test_two_recoveries_release_a_job_once(self, orphan: WorkJob, gate_on: GateOn) -> None:
        make.WorkStepFactory.create(job=orphan)
        with gate_on("step", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(recover).result()
            held.open()

        assert (first.result().adopted, second.adopted) == (1, 0)
        orphan.refresh_from_db()
        assert orphan.generation == 2
        before = every_job_row()
        assert recover().examined == 0
        assert every_job_row() == before

    def test_a_claim_wins_over_the_end_of_the_wait(self, gate_on: GateOn) -> None:
        job = make.WorkJobFactory.create(queue_deadline_at=Now())
        with gate_on("job", job) as held:
            first = Rival(claiming(job)).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        assert first.result() is not None
        assert recover().examined == 0
