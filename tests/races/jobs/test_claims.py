"""Two that want the same job or the same call: one gets it, both are told."""

from __future__ import annotations

import pytest

from recovery.errors import IllegalTransition, StaleFence
from recovery.models import Runtime
from tests import factories as make
from tests.factories import fence_of
from tests.races.jobs.moves import GateOn, claiming, claiming_some
from tests.support.job_transitions import adopted
from tests.support.rivals import Rival, gate
from work.models import WorkJob, WorkStep
from work.transitions import finish_step, start_step

pytestmark = pytest.mark.django_db(transaction=True)


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


class TestTwoStarts:
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
