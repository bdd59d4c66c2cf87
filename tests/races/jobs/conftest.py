"""Jobs to race for, and gates on their rows."""

from __future__ import annotations

import pytest

from tests import factories as make
from tests.factories import fence_of
from tests.races.jobs.moves import GateOn
from tests.support.job_transitions import bury_worker
from tests.support.rivals import gate
from work.models import WorkJob, WorkStep
from work.transitions import append_report

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
def step(job: WorkJob) -> WorkStep:
    """A call of that job that has not started."""
    return make.WorkStepFactory.create(job=job)


@pytest.fixture
def orphan(job: WorkJob) -> WorkJob:
    """The same job with its runtime buried."""
    bury_worker(job)
    return job
