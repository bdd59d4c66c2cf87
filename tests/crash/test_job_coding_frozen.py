"""A coding job's worker is frozen while it closes: what its successor does there is safe."""

from __future__ import annotations

import signal

import pytest

from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.jobs import (
    COMMIT,
    WRITE,
    coding_job,
    every_job_row,
    report_text,
    require_job_terminal,
    wait_until_job,
)
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from tests.work.coding.repositories import PersonsRepository
from work.coding.places import Place
from work.models import Computer, WorkJob
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = "5"


@pytest.fixture(autouse=True)
def script(model: Simulator) -> None:
    """Each job writes a file, commits it, and answers."""
    model.script(
        tool_calls(WRITE, response_id="resp_1"),
        tool_calls(COMMIT, response_id="resp_2"),
        answer("I added b.", response_id="resp_3"),
    )


def frozen_at(point: str, job: WorkJob, start_worker: WorkerStarter) -> Worker:
    """Return the worker of the job that stands still there, buried; its job waits."""
    worker = start_worker(stop_at=[point], HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    worker.hint_job(job.pk)
    worker.wait_until_reached(point)
    worker.freeze()
    wait_until(lambda: WorkRecovery().run().adopted == 1, "the orphan is released")
    return worker


def wake(worker: Worker, point: str) -> None:
    """Let it go on; return when it has let go of the job."""
    runtime = worker.runtime
    worker.release(point)
    worker.signal(signal.SIGCONT)
    wait_until(lambda: worker.runtime.pk != runtime.pk, "it registers anew")
    wait_until(lambda: '"job.fence_lost"' in worker.said(), "it lets go of the job")


def require_done(job: WorkJob, repository: PersonsRepository) -> None:
    """The job is done, once, and nothing lies about."""
    require_job_terminal(job)
    assert (job.state, job.attempts) == ("completed", 2)
    said = report_text(job)
    assert said.startswith("I added b.\n\nThe work is on branch")
    assert repository.git("rev-parse", job.branch) in said
    assert "lost" not in said
    assert repository.git("log", "--format=%s", f"main..{job.branch}") == "Add b"
    assert repository.git("status", "--short") == ""
    assert len(repository.git("worktree", "list").splitlines()) == 1
    places = Place(job.pk).base.parent
    wait_until(lambda: list(places.iterdir()) == [], "its place is removed")


@pytest.mark.parametrize("point", ["workspace.kept", "workspace.taken_down"])
def test_a_worker_that_wakes_up_while_its_adopter_closes_takes_nothing_from_it(
    point: str,
    computer: Computer,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    job = coding_job(computer)
    frozen = frozen_at(point, job, start_worker)
    adopter = start_worker(stop_at=["workspace.complete"])
    adopter.wait_until_reached("workspace.complete")
    wake(frozen, point)
    adopter.release("workspace.complete")
    wait_until_job(job)
    require_done(job, repository)
    assert model.posts == 3


@pytest.mark.parametrize("point", ["job.answered", "workspace.taken_down"])
def test_a_worker_that_wakes_up_when_its_adopter_is_done_leaves_nothing(
    point: str,
    computer: Computer,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    job = coding_job(computer)
    frozen = frozen_at(point, job, start_worker)
    start_worker()
    wait_until_job(job)
    wait_until(lambda: not Place(job.pk).base.exists(), "its place is removed")
    before = every_job_row()
    wake(frozen, point)
    assert every_job_row() == before
    require_done(job, repository)
    assert model.posts == 3
