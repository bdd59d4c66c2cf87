"""Each pair of transitions of one job, in both orders, on real sessions: one wins, both tell.

The first is held up inside its transaction or statement, with the conversation and the job
locked. The second must wait for it, and then finds what the first has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

import pytest

from recovery.errors import ErrorCode, Refused, StaleFence
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.support.rivals import Gate, Rival, gate
from tests.support.settled import every_row
from turns.models import Conversation
from work import transitions
from work.models import JobReport, JobReportMessage, WorkJob, WorkStep
from work.recovery import WorkRecovery
from work.transitions import Admission

pytestmark = pytest.mark.django_db(transaction=True)

HoldOn = Callable[[str, WorkJob], AbstractContextManager[Gate]]
# Held up at `job`, a transition has its conversation; at `request` or `step`, its job as well.
ROWS: Final = {
    "conversation": "SELECT FROM turns_conversation c JOIN work_workjob j "
    "ON j.conversation_id = c.id WHERE j.id = %s FOR UPDATE OF c",
    "job": "SELECT FROM work_workjob WHERE id = %s FOR UPDATE",
    "request": "SELECT FROM work_workproviderstep WHERE job_id = %s FOR UPDATE",
    "step": "SELECT FROM work_workstep WHERE job_id = %s FOR UPDATE",
}


@pytest.fixture
def gate_on(database_url: str) -> HoldOn:
    return lambda row, job: gate(database_url, ROWS[row], job.pk)


@pytest.fixture
def job() -> WorkJob:
    """A job at work, its runtime alive, a request under way."""
    job = make.WorkJobFactory.create(running=True)
    make.WorkProviderStepFactory.create(job=job)
    return job


@pytest.fixture
def orphan() -> WorkJob:
    """A job whose runtime is buried, a request under way and a call waiting."""
    job = make.WorkJobFactory.create(orphaned=True)
    make.WorkStepFactory.create(job=job)
    make.WorkProviderStepFactory.create(job=job)
    return job


def recover() -> RecoveryReport:
    return WorkRecovery().settle_orphans()


def cancel(job: WorkJob) -> Callable[[], tuple[WorkJob, bool]]:
    return lambda: transitions.request_cancel(job.person_id, job.pk)


def claim(job: WorkJob) -> Callable[[], object]:
    owner = make.RuntimeFactory.create().pk
    return lambda: transitions.claim_job(job.pk, owner=owner)


def fail(job: WorkJob) -> Callable[[], WorkJob]:
    fence = make.fence_of(job)
    return lambda: transitions.finish_job(
        fence, WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_FAILED
    )


def give_back(job: WorkJob) -> Callable[[], list[int]]:
    fence = make.fence_of(job)
    return lambda: transitions.release_own_jobs([fence])


def ended(job: WorkJob, state: str, code: str) -> None:
    """Fail unless the job ended like this, with all it consists of and one message."""
    job.refresh_from_db()
    assert (job.state, job.error_code) == (state, code)
    assert not job.steps.filter(finished_at=None).exists()
    assert not job.provider_steps.filter(finished_at=None).exists()
    assert JobReportMessage.objects.filter(report__job=job).count() == 1


def test_two_workers_claim_at_the_same_instant_and_one_wins(gate_on: HoldOn) -> None:
    job = make.WorkJobFactory.create()
    with gate_on("job", job) as held:
        first = Rival(claim(job)).until_it_waits()
        second = Rival(claim(job)).until_it_waits()
        held.open()

    won = [each.result() for each in (first, second)]
    assert sum(fence is not None for fence in won) == 1
    job.refresh_from_db()
    assert (job.state, job.generation, job.attempts) == ("running", 1, 1)


def test_two_workers_adopt_at_the_same_instant_and_one_wins(gate_on: HoldOn) -> None:
    job = make.WorkJobFactory.create(released=True)
    with gate_on("job", job) as held:
        rivals = [Rival(claim(job)).until_it_waits() for _ in range(2)]
        held.open()

    assert sum(rival.result() is not None for rival in rivals) == 1
    job.refresh_from_db()
    assert (job.generation, job.attempts) == (3, 2)


class TestCancelAndClaim:
    def test_cancel_first_the_claim_gets_nothing(self, gate_on: HoldOn) -> None:
        """failure H21"""
        job = make.WorkJobFactory.create()
        with gate_on("job", job) as held:
            first = Rival(cancel(job)).until_it_waits()
            second = Rival(claim(job)).until_it_waits()
            held.open()

        assert first.result()[0].state == "cancelled"
        assert second.result() is None
        ended(job, "cancelled", "cancelled")

    def test_claim_first_the_cancel_is_recorded_and_nothing_starts_after_it(
        self, gate_on: HoldOn
    ) -> None:
        """failure H28, failure H29"""
        job = make.WorkJobFactory.create()
        with gate_on("job", job) as held:
            first = Rival(claim(job)).until_it_waits()
            second = Rival(cancel(job)).until_it_waits()
            held.open()

        assert first.result() is not None
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("running", True)
        job.refresh_from_db()
        with pytest.raises(transitions.CancelRequested):
            transitions.start_provider_step(make.fence_of(job), make.request_facts())

    def test_a_released_job_that_is_cancelled_is_never_adopted(self, gate_on: HoldOn) -> None:
        """failure H21: between two attempts"""
        job = make.WorkJobFactory.create(released=True)
        with gate_on("job", job) as held:
            first = Rival(cancel(job)).until_it_waits()
            second = Rival(claim(job)).until_it_waits()
            held.open()

        assert first.result()[0].state == "cancelled"
        assert second.result() is None
        job.refresh_from_db()
        assert job.generation == 2


class TestCancelAndFinish:
    def test_cancel_first_the_finish_becomes_cancelled(
        self, job: WorkJob, gate_on: HoldOn
    ) -> None:
        """failure H27"""
        with gate_on("job", job) as held:
            first = Rival(cancel(job)).until_it_waits()
            second = Rival(fail(job)).until_it_waits()
            held.open()

        assert first.result()[1] is True
        assert second.result().state == "cancelled"
        ended(job, "cancelled", "cancelled")

    def test_a_result_that_comes_after_the_cancel_is_evidence_and_not_the_report(
        self, job: WorkJob
    ) -> None:
        """failure H27"""
        fence = make.fence_of(job)
        job.provider_steps.update(state="completed", finished_at=job.claimed_at)
        transitions.append_report(fence, "The boat is blue.")
        Rival(cancel(job)).result()

        assert transitions.finish_job(fence, WorkJob.State.COMPLETED).state == "cancelled"

        ended(job, "cancelled", "cancelled")
        shown = JobReportMessage.objects.get(report__job=job)
        assert shown.report.kind == JobReport.Kind.NOTICE
        assert "boat" not in shown.message.text
        assert JobReport.objects.get(job=job, kind="result").text == "The boat is blue."

    def test_finish_first_the_cancel_answers_with_the_end_it_found(
        self, job: WorkJob, gate_on: HoldOn
    ) -> None:
        with gate_on("request", job) as held:
            first = Rival(fail(job)).until_it_waits()
            second = Rival(cancel(job)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().state == "failed"
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("failed", False)
        ended(job, "failed", "provider_failed")


class TestCancelAndStep:
    def start(self, job: WorkJob) -> Callable[[], WorkStep]:
        fence, step = make.fence_of(job), job.steps.get()
        return lambda: transitions.start_step(fence, step.pk)

    @pytest.fixture
    def job(self) -> WorkJob:
        job = make.WorkJobFactory.create(running=True)
        make.WorkStepFactory.create(job=job)
        return job

    def test_cancel_first_the_tool_does_not_start(self, job: WorkJob, gate_on: HoldOn) -> None:
        """failure H29"""
        with gate_on("job", job) as held:
            first = Rival(cancel(job)).until_it_waits()
            second = Rival(self.start(job)).until_it_waits()
            held.open()

        assert first.result()[1]
        assert isinstance(second.error(), transitions.CancelRequested)
        assert job.steps.get().state == "requested"

    def test_start_first_the_cancel_finds_the_tool_running(
        self, job: WorkJob, gate_on: HoldOn
    ) -> None:
        with gate_on("step", job) as held:
            first = Rival(self.start(job)).until_it_waits()
            second = Rival(cancel(job)).until_it_waits()
            held.open()

        first.result()
        assert second.result()[1]
        assert job.steps.get().state == "running"


class TestRecoveryAndItsRivals:
    def test_recovery_first_every_write_of_the_old_owner_is_stale(
        self, orphan: WorkJob, gate_on: HoldOn
    ) -> None:
        """failure H11"""
        fence, step = make.fence_of(orphan), orphan.steps.get()
        late = (
            fail(orphan),
            lambda: transitions.append_report(fence, "late"),
            lambda: transitions.checkpoint_session(fence, "late", 1),
            lambda: transitions.start_step(fence, step.pk),
        )
        with gate_on("request", orphan) as held:
            first = Rival(recover).until_it_waits()
            rivals = [Rival[object](act).until_it_waits() for act in late]
            assert rivals[0].waits_for(first.pid)
            held.open()

        assert first.result().adopted == 1
        assert all(isinstance(rival.error(), StaleFence) for rival in rivals)
        orphan.refresh_from_db()
        assert (orphan.state, orphan.generation, orphan.acp_session_id) == ("queued", 2, "")
        assert orphan.steps.get().state == "requested"
        assert not JobReport.objects.exists()

    def test_finish_first_recovery_leaves_the_row_alone(
        self, orphan: WorkJob, gate_on: HoldOn
    ) -> None:
        with gate_on("request", orphan) as held:
            first = Rival(fail(orphan)).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        assert first.result().state == "failed"
        assert recover().examined == 0
        ended(orphan, "failed", "provider_failed")

    def test_recovery_first_the_cancel_ends_what_was_released(
        self, orphan: WorkJob, gate_on: HoldOn
    ) -> None:
        with gate_on("request", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(cancel(orphan)).until_it_waits()
            held.open()

        assert first.result().adopted == 1
        assert second.result()[0].state == "cancelled"
        ended(orphan, "cancelled", "cancelled")

    def test_a_row_cancelled_between_look_and_lock_stays_cancelled(
        self, orphan: WorkJob
    ) -> None:
        """failure H30"""
        recovery, report = WorkRecovery(), RecoveryReport("work")
        selected = recovery._owned.look(limit=10)
        assert [found.pk for found in selected] == [orphan.pk]
        Rival(cancel(orphan)).result()

        recovery._settle_batch(selected, report)

        assert (report.adopted, report.interrupted, report.failed) == (0, 0, 0)
        ended(orphan, "cancelled", "cancelled")
        assert orphan.generation == 1

    def test_two_recoveries_release_a_row_once(self, orphan: WorkJob, gate_on: HoldOn) -> None:
        with gate_on("request", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(recover).result()
            held.open()

        assert (first.result().adopted, second.adopted) == (1, 0)
        orphan.refresh_from_db()
        assert orphan.generation == 2
        before = every_row()
        assert recover().changed_count == 0
        assert every_row() == before

    def test_a_drain_and_a_sweep_release_a_row_once(
        self, orphan: WorkJob, gate_on: HoldOn
    ) -> None:
        with gate_on("request", orphan) as held:
            first = Rival(give_back(orphan)).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        assert first.result() == [orphan.pk]
        assert recover().changed_count == 0
        orphan.refresh_from_db()
        assert (orphan.generation, orphan.planned_releases) == (2, 1)


class TestAdmissions:
    @pytest.fixture
    def conversation(self) -> Conversation:
        return make.ConversationFactory.create()

    def admit(self, conversation: Conversation, key: str | None = None) -> Admission:
        ask = transitions.JobAsk(WorkJob.Kind.DEEP_WORK, "Find out.")
        return transitions.admit_job(
            conversation.owner_id, conversation.pk, ask, client_key=key
        )

    def at_once(
        self, database_url: str, conversation: Conversation, key: str | None = None
    ) -> list[Rival[Admission]]:
        """Return two admissions that met at the lock of their person."""
        person = "SELECT FROM auth_user WHERE id = %s FOR UPDATE"
        act = partial(self.admit, conversation, key)
        with gate(database_url, person, conversation.owner_id) as held:
            rivals = [Rival(act).until_it_waits() for _ in range(2)]
            held.open()
        return rivals

    def test_one_key_twice_at_once_is_one_job(
        self, database_url: str, conversation: Conversation
    ) -> None:
        """failure H18"""
        admitted = [each.result() for each in self.at_once(database_url, conversation, "k")]
        assert WorkJob.objects.count() == 1
        assert {each.created for each in admitted} == {True, False}

    def test_the_limit_of_a_person_holds_for_requests_at_once(
        self, database_url: str, conversation: Conversation
    ) -> None:
        for _ in range(7):
            self.admit(conversation)

        errors = [each.error() for each in self.at_once(database_url, conversation)]
        refused = [error for error in errors if isinstance(error, Refused)]
        assert [error.code for error in refused] == [ErrorCode.JOB_LIMIT_REACHED]
        assert WorkJob.objects.count() == 8
