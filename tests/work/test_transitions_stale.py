"""Who may write: the live generation, and nothing new after a cancel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction

from recovery.constraints import violated_constraint
from recovery.errors import StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.factories import fence_of, request_facts
from tests.support.job_transitions import adopted, bury_worker, complete
from tests.support.jobs import every_job_row
from work.models import WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery
from work.transitions import (
    CancelRequested,
    append_report,
    finish_job,
    finish_jobs,
    finish_step,
    request_cancel,
    start_provider_step,
    start_step,
)

pytestmark = pytest.mark.django_db

State = WorkStep.State


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


Write = Callable[[Fence, WorkStep, WorkStep, WorkProviderStep], object]
WRITES: dict[str, Write] = {
    "start_provider_step": lambda f, *_: start_provider_step(f, request_facts()),
    "complete_provider_step": lambda f, _w, _r, asked: complete(f, asked),
    "start_step": lambda f, waits, *_: start_step(f, waits.pk),
    "finish_step": lambda f, _w, runs, _p: finish_step(f, runs.pk, State.SUCCEEDED),
    "append_report": lambda f, *_: append_report(f, "Found it."),
    "finish_job": lambda f, *_: finish_job(f, WorkJob.State.COMPLETED),
    "fail_job": lambda f, *_: finish_job(f, WorkJob.State.FAILED),
}


OVERTAKEN = ("release", "adoption", "end")


def overtaken(job: WorkJob, by: str) -> Fence:
    """Return the fence of who had the job before somebody released, adopted or ended it."""
    stale = fence_of(job)
    match by:
        case "adoption":
            adopted(job)
        case "release":
            bury_worker(job)
            WorkRecovery().settle_orphans()
        case _:
            finish_job(stale, WorkJob.State.FAILED)
    return stale


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("overtaken_by", OVERTAKEN)
def test_a_stale_generation_writes_nothing(job: WorkJob, write: str, overtaken_by: str) -> None:
    """failure H11: no step, outcome, report or end, before or after another adopts"""
    waits = make.WorkStepFactory.create(job=job)
    runs = make.WorkStepFactory.create(job=job, provider_step=waits.provider_step, running=True)
    asked = make.WorkProviderStepFactory.create(job=job)
    stale = overtaken(job, overtaken_by)
    before = every_job_row()

    with pytest.raises(StaleFence):
        WRITES[write](stale, waits, runs, asked)

    assert every_job_row() == before


@pytest.mark.parametrize("overtaken_by", OVERTAKEN)
def test_a_stale_generation_completes_no_job_in_which_nothing_is_open(
    job: WorkJob, overtaken_by: str
) -> None:
    """failure H11: an open step alone would keep it from completing"""
    append_report(fence_of(job), "Found it.")
    stale = overtaken(job, overtaken_by)
    before = every_job_row()

    with pytest.raises(StaleFence):
        finish_job(stale, WorkJob.State.COMPLETED)
    assert finish_jobs([stale], WorkJob.State.COMPLETED) == []

    assert every_job_row() == before


OLD_WRITES = {
    "work_workstep_fence_presented": """
        UPDATE work_workstep SET state = 'running', started_at = now(), write_mark = %(mark)s
    """,
    "work_jobreport_child_fence": """
        INSERT INTO work_jobreport (job_id, generation, kind, text, byte_count, digest)
        VALUES (%(job)s, 1, 'result', 'Found.', 6, 'd')
    """,
    "work_workproviderstep_child_fence": """
        INSERT INTO work_workproviderstep (job_id, generation, sequence, state, error_code,
            model, request_digest, request_bytes, offers_tools, anomaly_count, text)
        VALUES (%(job)s, 1, 9, 'started', '', 'm', 'd', 1, true, 0, '')
    """,
    "work_workstep_child_fence": """
        INSERT INTO work_workstep SELECT (jsonb_populate_record(s, jsonb_build_object(
            'id', 999999, 'sequence', 9, 'call_id', 'late', 'generation', 1,
            'write_mark', 1::bigint << 32, 'invocation_key', gen_random_uuid()))).*
        FROM work_workstep s
    """,
}


@pytest.mark.parametrize("adopted_since", [False, True])
def test_a_stale_step_is_refused_with_its_own_old_mark(
    job: WorkJob, adopted_since: bool
) -> None:
    """failure H11: raw SQL on the children, with what the old owner knows of them"""
    waits = make.WorkStepFactory.create(job=job)
    stale = waits.write_mark + 1
    if adopted_since:
        adopted(job)
    else:
        bury_worker(job)
        WorkRecovery().settle_orphans()

    for rule, sql in OLD_WRITES.items():
        with pytest.raises(IntegrityError) as refused, transaction.atomic():
            connection.cursor().execute(sql, {"mark": stale, "job": job.pk})
        assert violated_constraint(refused.value) == rule


@pytest.mark.parametrize("write", ["start_provider_step", "start_step"])
def test_after_a_cancel_nothing_new_starts(job: WorkJob, write: str) -> None:
    """failure H29"""
    waits = make.WorkStepFactory.create(job=job)
    runs = make.WorkStepFactory.create(job=job, provider_step=waits.provider_step, running=True)
    request_cancel(job.person_id, job.pk)
    before = every_job_row()

    with pytest.raises(CancelRequested):
        WRITES[write](fence_of(job), waits, runs, waits.provider_step)

    assert every_job_row() == before


def test_after_a_cancel_no_request_starts_where_nothing_is_open(job: WorkJob) -> None:
    """failure H29: an open step alone would keep it from starting"""
    request_cancel(job.person_id, job.pk)
    before = every_job_row()

    with pytest.raises(CancelRequested):
        start_provider_step(fence_of(job), request_facts())

    assert every_job_row() == before


@pytest.mark.parametrize("write", ["finish_step", "append_report", "complete_provider_step"])
def test_after_a_cancel_what_is_known_is_still_stored(job: WorkJob, write: str) -> None:
    waits = make.WorkStepFactory.create(job=job)
    runs = make.WorkStepFactory.create(job=job, provider_step=waits.provider_step, running=True)
    asked = make.WorkProviderStepFactory.create(job=job)
    request_cancel(job.person_id, job.pk)

    assert WRITES[write](fence_of(job), waits, runs, asked) is not None
