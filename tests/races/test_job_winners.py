"""Each pair of transitions of one job, in both orders, on real sessions: one wins, both tell.

The first is held up with the conversation locked, at the job or at what follows it. The second
waits for the conversation: what it looked up by then is old when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from django.db.models.functions import Now

from recovery.errors import IllegalTransition, StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, bury_worker
from tests.support.jobs import calls_of, every_job_row, report_text, require_job_terminal, shown
from tests.support.rivals import Gate, Rival, gate
from work.models import WorkJob, WorkStep
from work.recovery import WorkRecovery
from work.transitions import (
    CancelRequested,
    append_report,
    checkpoint_session,
    claim_job,
    claim_jobs,
    finish_job,
    finish_jobs,
    finish_step,
    release_own_jobs,
    request_cancel,
    start_provider_step,
    start_step,
)

pytestmark = pytest.mark.django_db(transaction=True)

GateOn = Callable[[str, WorkJob], AbstractContextManager[Gate]]
ROWS = {
    "job": "SELECT FROM work_workjob WHERE id = %s FOR UPDATE",
    "step": "SELECT FROM work_workstep WHERE job_id = %s FOR UPDATE",
}


@pytest.fixture
def gate_on(database_url: str) -> GateOn:
    """Return a function that holds the job (its conversation is locked then), or its steps."""
    return lambda row, job: gate(database_url, ROWS[row], job.pk)


@pytest.fixture
def waiting() -> WorkJob:
    return make.WorkJobFactory.create()


@pytest.fixture
def job() -> WorkJob:
    """A reported job at work, with its runtime alive."""
    job = make.WorkJobFactory.create(running=True)
    append_report(fence_of(job), "Found it.")
    return job


@pytest.fixture
def orphan(job: WorkJob) -> WorkJob:
    """The same with its runtime buried."""
    bury_worker(job)
    return job


def recover() -> RecoveryReport:
    return WorkRecovery().settle_orphans()


def cancelling(job: WorkJob) -> Callable[[], tuple[WorkJob, bool]]:
    return lambda: request_cancel(job.person_id, job.pk)


def finishing(job: WorkJob) -> Callable[[], WorkJob]:
    fence = fence_of(job)
    return lambda: finish_job(fence, WorkJob.State.COMPLETED)


def claiming(job: WorkJob) -> Callable[[], Fence | None]:
    owner = make.RuntimeFactory.create().pk
    return lambda: claim_job(job.pk, owner=owner)


def claiming_some(limit: int = 10) -> Callable[[], list[Fence]]:
    owner = make.RuntimeFactory.create().pk
    return lambda: claim_jobs(owner=owner, limit=limit)


class TestTwoClaims:
    def test_two_claims_give_one_fence(self, waiting: WorkJob, gate_on: GateOn) -> None:
        with gate_on("job", waiting) as held:
            first = Rival(claiming(waiting)).until_it_waits()
            second = Rival(claiming(waiting)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        fence = first.result()
        assert fence is not None
        assert second.result() is None
        waiting.refresh_from_db()
        assert (waiting.generation, waiting.attempts) == (1, 1)
        assert waiting.claim_token == fence.token

    def test_a_claim_of_many_leaves_what_another_is_claiming(
        self, waiting: WorkJob, gate_on: GateOn
    ) -> None:
        """It waits for nobody, and takes the next."""
        others = make.WorkJobFactory.create_batch(2)
        with gate_on("job", waiting) as held:
            first = Rival(claiming(waiting)).until_it_waits()
            taken = Rival(claiming_some()).result()
            held.open()

        assert {fence.pk for fence in taken} == {job.pk for job in others}
        assert first.result() is not None

    def test_two_claims_of_many_share_the_queue(self, gate_on: GateOn) -> None:
        jobs = make.WorkJobFactory.create_batch(6)
        with gate_on("job", jobs[0]) as held:
            first = Rival(claiming_some(3)).until_it_waits()
            second = Rival(claiming_some(3)).result()
            held.open()

        claimed = [fence.pk for fence in [*first.result(), *second, *claiming_some()()]]
        assert len(second) == 3
        assert sorted(claimed) == [job.pk for job in jobs]

    def test_a_claim_does_not_take_a_job_that_changed_hands_while_it_waited(
        self, database_url: str
    ) -> None:
        """What it saw of the steps is older than the hands they went through meanwhile."""
        job = make.WorkJobFactory.create(released=True)
        conversation = "SELECT FROM turns_conversation WHERE id = %s FOR NO KEY UPDATE"
        with gate(database_url, conversation, job.conversation_id) as held:
            late = Rival(claiming(job)).until_it_waits()
            # another claim, a call, a death and a release, by one who was in time
            WorkJob.objects.filter(pk=job.pk).update(
                state="running", generation=3, write_mark=3 << 32, attempts=2,
                owner=make.RuntimeFactory.create(lost=True).pk,
                claim_token="00000000-0000-4000-8000-000000000000",
            )  # fmt: skip
            job.refresh_from_db()
            step = make.WorkStepFactory.create(job=job)
            WorkJob.objects.filter(pk=job.pk).update(
                state="queued", generation=4, write_mark=4 << 32, owner=None, claim_token=None
            )
            WorkStep.objects.update(generation=4, write_mark=4 << 32)
            held.open()

        assert late.result() is None
        fence = claiming(job)()
        assert fence is not None
        assert start_step(fence, step.pk).generation == 5


class TestCancelAndClaim:
    @pytest.mark.parametrize("many", [False, True])
    def test_cancel_first_the_claim_gets_nothing(
        self, waiting: WorkJob, gate_on: GateOn, many: bool
    ) -> None:
        """failure H21"""
        claim: Callable[[], object] = claiming_some() if many else claiming(waiting)
        with gate_on("job", waiting) as held:
            first = Rival(cancelling(waiting)).until_it_waits()
            second = Rival(claim)
            if not many:  # who claims many waits for nobody
                second.until_it_waits()
            assert not second.result() if many else True
            held.open()

        assert first.result()[0].state == "cancelled"
        assert not second.result()
        require_job_terminal(waiting)
        assert (waiting.state, waiting.generation) == ("cancelled", 0)

    def test_claim_first_the_cancel_is_recorded_and_stops_the_worker(
        self, waiting: WorkJob, gate_on: GateOn
    ) -> None:
        """failure H28"""
        with gate_on("job", waiting) as held:
            first = Rival(claiming(waiting)).until_it_waits()
            second = Rival(cancelling(waiting)).until_it_waits()
            held.open()

        fence = first.result()
        assert fence is not None
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("running", True)
        with pytest.raises(CancelRequested):
            start_provider_step(fence, request_facts())
        assert finish_job(fence, WorkJob.State.COMPLETED).state == "cancelled"


class TestCancelAndFinish:
    def test_cancel_first_the_finish_becomes_cancelled(
        self, job: WorkJob, gate_on: GateOn
    ) -> None:
        """failure H27"""
        with gate_on("job", job) as held:
            first = Rival(cancelling(job)).until_it_waits()
            second = Rival(finishing(job)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result()[1] is True
        assert second.result().state == "cancelled"
        require_job_terminal(job)
        assert report_text(job).startswith("This job was cancelled.")

    def test_finish_first_the_cancel_answers_with_the_end_it_found(
        self, job: WorkJob, gate_on: GateOn
    ) -> None:
        with gate_on("job", job) as held:
            first = Rival(finishing(job)).until_it_waits()
            second = Rival(cancelling(job)).until_it_waits()
            held.open()

        assert first.result().state == "completed"
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("completed", False)
        assert shown(job) == ["Found it."]

    def test_a_finish_of_many_leaves_out_who_was_cancelled_meanwhile(
        self, job: WorkJob, gate_on: GateOn
    ) -> None:
        other = make.WorkJobFactory.create(running=True)
        fences = [fence_of(job), fence_of(other)]
        with gate_on("job", job) as held:
            first = Rival(cancelling(job)).until_it_waits()
            second = Rival(lambda: finish_jobs(fences, WorkJob.State.COMPLETED))
            second.until_it_waits()
            held.open()

        assert first.result()[1]
        assert [ended.pk for ended in second.result()] == [other.pk]
        assert finish_job(fences[0], WorkJob.State.COMPLETED).state == "cancelled"


class TestCancelAndStart:
    @pytest.fixture
    def step(self, job: WorkJob) -> WorkStep:
        return make.WorkStepFactory.create(job=job)

    def test_cancel_first_the_call_does_not_start(
        self, job: WorkJob, step: WorkStep, gate_on: GateOn
    ) -> None:
        """failure H29"""
        fence = fence_of(job)
        with gate_on("job", job) as held:
            first = Rival(cancelling(job)).until_it_waits()
            second = Rival(lambda: start_step(fence, step.pk)).until_it_waits()
            held.open()

        assert first.result()[1]
        assert isinstance(second.error(), CancelRequested)
        assert calls_of(job) == [("requested", "")]

    def test_start_first_the_cancel_finds_the_call_running(
        self, job: WorkJob, step: WorkStep, gate_on: GateOn
    ) -> None:
        fence = fence_of(job)
        with gate_on("step", job) as held:
            first = Rival(lambda: start_step(fence, step.pk)).until_it_waits()
            second = Rival(cancelling(job)).until_it_waits()
            held.open()

        first.result()
        assert second.result()[1]
        assert calls_of(job) == [("running", "")]

    def test_two_starts_run_the_call_once(
        self, job: WorkJob, step: WorkStep, gate_on: GateOn
    ) -> None:
        fence = fence_of(job)
        with gate_on("step", job) as held:
            first = Rival(lambda: start_step(fence, step.pk)).until_it_waits()
            second = Rival(lambda: start_step(fence, step.pk)).until_it_waits()
            held.open()

        assert first.result().state == "running"
        assert isinstance(second.error(), IllegalTransition)

    def test_calls_side_by_side_start_and_end_one_after_the_other(
        self, job: WorkJob, step: WorkStep, gate_on: GateOn
    ) -> None:
        other = make.WorkStepFactory.create(job=job, provider_step=step.provider_step)
        fence = fence_of(job)
        with gate_on("job", job) as held:
            starts = [
                Rival(lambda pk=pk: start_step(fence, pk)).until_it_waits()  # type: ignore[misc]
                for pk in (step.pk, other.pk)
            ]
            held.open()
        assert [start.result().state for start in starts] == ["running", "running"]

        with gate_on("job", job) as held:
            ends = [
                Rival(
                    lambda pk=pk: finish_step(fence, pk, WorkStep.State.SUCCEEDED)  # type: ignore[misc]
                ).until_it_waits()
                for pk in (step.pk, other.pk)
            ]
            held.open()
        assert [end.result().state for end in ends] == ["succeeded", "succeeded"]


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


class TestReleaseAndCancel:
    def test_a_stopping_worker_does_not_give_back_what_was_cancelled(
        self, job: WorkJob, gate_on: GateOn
    ) -> None:
        fence = fence_of(job)
        with gate_on("job", job) as held:
            first = Rival(cancelling(job)).until_it_waits()
            second = Rival(lambda: release_own_jobs([fence])).until_it_waits()
            held.open()

        assert first.result()[1]
        assert second.result() == []
        require_job_terminal(job)
        assert job.state == "cancelled"

    def test_release_first_the_cancel_ends_what_waits(
        self, job: WorkJob, gate_on: GateOn
    ) -> None:
        fence = fence_of(job)
        with gate_on("job", job) as held:
            first = Rival(lambda: release_own_jobs([fence])).until_it_waits()
            second = Rival(cancelling(job)).until_it_waits()
            held.open()

        assert first.result() == [job.pk]
        assert second.result()[0].state == "cancelled"


def test_an_adopter_and_the_old_owner_do_not_both_start_a_call(
    job: WorkJob, gate_on: GateOn
) -> None:
    """The old one comes back to life while the new one is at it: the call runs once."""
    step = make.WorkStepFactory.create(job=job)
    old, new = fence_of(job), adopted(job)
    with gate_on("step", job) as held:
        first = Rival(lambda: start_step(new, step.pk)).until_it_waits()
        assert isinstance(Rival(lambda: start_step(old, step.pk)).error(), StaleFence)
        held.open()

    assert first.result().generation == 3
    assert Runtime.objects.living().count() == 1
