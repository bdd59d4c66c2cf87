"""A job changes hands, or was to: two adopters, a drain beside a sweep, a result too late."""

from __future__ import annotations

from functools import partial
from typing import Final

import pytest
from django.db.models.functions import Now

from recovery.errors import IllegalTransition
from tests import factories as make
from tests.support.rivals import Rival, gate
from turns.transitions import CallOutcome
from work import transitions
from work.models import JobReport, JobReportMessage, WorkJob, WorkStep
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

# Held up at its job, a claim has the conversation; at the request, a release has the job too.
CONVERSATION: Final = "SELECT FROM turns_conversation WHERE id = %s FOR UPDATE"
JOB: Final = "SELECT FROM work_workjob WHERE id = %s FOR UPDATE"
REQUEST: Final = "SELECT FROM work_workproviderstep WHERE job_id = %s FOR UPDATE"


def test_two_workers_adopt_at_the_same_instant_and_one_wins(database_url: str) -> None:
    job = make.WorkJobFactory.create(released=True)
    owners = [make.RuntimeFactory.create().pk for _ in range(2)]
    with gate(database_url, JOB, job.pk) as held:
        rivals = [
            Rival(partial(transitions.claim_job, job.pk, owner=owner)).until_it_waits()
            for owner in owners
        ]
        held.open()

    assert sum(rival.result() is not None for rival in rivals) == 1
    job.refresh_from_db()
    assert (job.generation, job.attempts) == (3, 2)


def test_a_drain_and_a_sweep_release_a_job_once(database_url: str) -> None:
    job = make.WorkJobFactory.create(orphaned=True)
    make.WorkProviderStepFactory.create(job=job)
    give_back = partial(transitions.release_own_jobs, [make.fence_of(job)])
    with gate(database_url, REQUEST, job.pk) as held:
        drain = Rival(give_back).until_it_waits()
        assert Rival(WorkRecovery().settle_orphans).result().skipped == 1
        held.open()

    assert drain.result() == [job.pk]
    assert WorkRecovery().settle_orphans().changed_count == 0
    job.refresh_from_db()
    assert (job.generation, job.planned_releases) == (2, 1)


def test_a_result_that_comes_after_the_cancel_is_evidence_and_not_the_report() -> None:
    """failure H27"""
    job = make.WorkJobFactory.create(running=True)
    make.WorkProviderStepFactory.create(job=job, state="completed", finished_at=Now())
    fence = make.fence_of(job)
    transitions.append_report(fence, "The boat is blue.")
    Rival(partial(transitions.request_cancel, job.person_id, job.pk)).result()

    ended = transitions.finish_job(fence, WorkJob.State.COMPLETED)

    assert (ended.state, ended.error_code) == ("cancelled", "cancelled")
    shown = JobReportMessage.objects.get(report__job=job)
    assert shown.report.kind == JobReport.Kind.NOTICE
    assert "boat" not in shown.message.text
    assert JobReport.objects.get(job=job, kind="result").text == "The boat is blue."


def test_of_calls_that_another_started_meanwhile_none_is_started_and_outcomes_stay(
    database_url: str,
) -> None:
    first, second, third = make.WorkStepFactory.create_batch(
        3, job=(job := make.WorkJobFactory.create(running=True))
    )
    fence = make.fence_of(job)
    transitions.start_step(fence, first.pk)
    outcome = CallOutcome.of(first.pk, WorkStep.State.SUCCEEDED, result="Found.")
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        ahead = Rival(partial(transitions.start_step, fence, second.pk)).until_it_waits()
        move = partial(
            transitions.move_steps, fence, ended=[outcome], starting=[second.pk, third.pk]
        )
        behind = Rival(move).until_it_waits()
        held.open()

    assert ahead.result().state == "running"
    with pytest.raises(IllegalTransition):
        behind.result()
    states = [WorkStep.objects.get(pk=step.pk).state for step in (first, second, third)]
    assert states == ["succeeded", "running", "requested"]
