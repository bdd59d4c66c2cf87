"""A cancel beside a claim, an end and a release, in both orders: one wins, both tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.races.jobs.moves import GateOn, cancelling, claiming, claiming_some, finishing
from tests.support.jobs import calls_of, report_text, require_job_terminal, shown
from tests.support.rivals import Rival
from work.models import WorkJob, WorkStep
from work.transitions import (
    CancelRequested,
    finish_job,
    finish_jobs,
    release_own_jobs,
    start_provider_step,
    start_step,
)

pytestmark = pytest.mark.django_db(transaction=True)


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
