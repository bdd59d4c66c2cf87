"""A coding job's worker is killed: on the same machine another goes on in the same worktree.

Where its machine does not come back in time the job ends with an honest report.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.jobs import (
    COMMIT,
    WRITE,
    calls_of,
    coding_job,
    pass_queue_deadline,
    recover_again,
    report_text,
    requests_of,
    require_job_terminal,
    wait_until_job,
)
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from tests.work.coding.repositories import PersonsRepository
from work.bounds import ADOPTION_DEADLINE_SECONDS
from work.coding.places import Place
from work.coding.removal import remove
from work.models import Computer
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

DONE = ("succeeded", "")
UNKNOWN = ("interrupted", "outcome_unknown")


@dataclass(frozen=True)
class Death:
    """Where the worker dies, and how the write it may have made is known in the end."""

    probe: str
    write: tuple[str, str] = DONE


DEATHS = [
    Death("job.claimed"),
    Death("workspace.checkpointed"),
    Death("job.step_requested"),
    Death("job.step_running", write=UNKNOWN),
    Death("job.outcome_committed"),
    Death("job.between_steps"),
    Death("job.answered"),
    Death("workspace.removed"),
    Death("job.workspace_closed"),
    Death("job.report_appended"),
    Death("job.finishing"),
]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.probe)
def test_a_coding_job_goes_on_in_its_worktree(
    death: Death,
    computer: Computer,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    model.script(
        tool_calls(WRITE, response_id="resp_1"),
        tool_calls(COMMIT, response_id="resp_2"),
        answer("I added b.", response_id="resp_3"),
    )
    worker = start_worker(stop_at=[death.probe])
    job = coding_job(computer)
    worker.hint_job(job.pk)
    worker.wait_until_reached(death.probe)
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    recover_again()
    # the person goes on meanwhile; a branch that was begun stays where it began
    main = repository.commit({"c.txt": "three\n"}, "Meanwhile")
    job.refresh_from_db()
    began = job.base_commit or main

    start_worker()
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.attempts, job.generation) == ("completed", 2, 3)
    assert calls_of(job) == [death.write, DONE]
    assert requests_of(job) == ["completed"] * 3
    assert model.posts == 3
    if death.write == DONE:
        tip = repository.git("rev-parse", job.branch)
        assert repository.git("log", "--format=%s", f"{began}..{job.branch}") == "Add b"
        assert repository.git("show", f"{tip}:b.txt") == "two"
        assert report_text(job).startswith("I added b.\n\n")
        assert job.branch in report_text(job)
        assert tip in report_text(job)
    # the person's own work is as it was, and nothing of the job's is left beside it
    assert repository.git("rev-parse", "main") == main
    assert repository.git("status", "--short") == ""
    assert len(repository.git("worktree", "list").splitlines()) == 1
    wait_until(lambda: not Place(job.pk).base.exists(), "its place is removed")


def test_a_check_that_ran_when_its_worker_died_is_not_run_again(
    computer: Computer,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    """What it had done stays, its program ends, and the model is told that nobody knows."""
    model.script(
        tool_calls(("call_1", "run_checks", '{"name": "count"}'), response_id="resp_1"),
        answer("The check may have run.", response_id="resp_2"),
    )
    worker = start_worker()
    job = coding_job(computer)
    worker.hint_job(job.pk)
    runs = Place(job.pk).tree / "runs"
    wait_until(lambda: runs.exists() and runs.read_text() == "once\n", "the check runs")
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    recover_again()

    start_worker()
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, calls_of(job), model.posts) == ("completed", [UNKNOWN], 2)
    assert repository.git("show", f"{job.branch}:runs") == "once"
    told = [i for i in model.requests()[-1].json["input"] if i["type"].startswith("function")]
    assert [item["type"] for item in told] == ["function_call", "function_call_output"]
    assert "unknown" in told[1]["output"]


def test_a_job_whose_working_copy_is_removed_under_it_ends_and_leaves_nothing(
    computer: Computer,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    """Its worker lives: nobody would take it over, and its deadline is an hour away."""
    model.script(
        tool_calls(("call_1", "run_checks", '{"name": "count"}'), response_id="resp_1"),
        answer("Never asked for.", response_id="resp_2"),
    )
    worker = start_worker()
    job = coding_job(computer)
    worker.hint_job(job.pk)
    place = Place(job.pk)
    wait_until((place.tree / "runs").exists, "the check runs")
    remove(place.base)
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.error_code, job.attempts) == ("failed", "workspace_failed", 1)
    assert calls_of(job) == [("failed", "runtime_lost")]
    assert model.posts == 1
    assert "working copy" in report_text(job)
    wait_until(lambda: not place.base.exists(), "what was left is removed")
    assert len(repository.git("worktree", "list").splitlines()) == 1
    recover_again()


def test_a_job_whose_working_copy_is_removed_before_it_is_adopted_says_what_is_lost(
    computer: Computer,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    model.script(
        tool_calls(WRITE, response_id="resp_1"), answer("I wrote b.", response_id="resp_2")
    )
    worker = start_worker(stop_at=["job.answered"])
    job = coding_job(computer)
    worker.hint_job(job.pk)
    worker.wait_until_reached("job.answered")
    worker.kill()
    remove(Place(job.pk).base)
    start_worker()
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.attempts) == ("completed", 2)
    assert "what was not committed by then is lost" in report_text(job)


def test_a_job_whose_machine_does_not_come_back_ends_with_an_honest_report(
    computer: Computer,
    start_worker: WorkerStarter,
    model: Simulator,
    tmp_path: Path,
) -> None:
    """behaviour O8"""
    model.script(tool_calls(WRITE, response_id="resp_1"))
    worker = start_worker(stop_at=["job.outcome_committed"])
    job = coding_job(computer)
    worker.hint_job(job.pk)
    worker.wait_until_reached("job.outcome_committed")
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    job.refresh_from_db()
    waits = job.queue_deadline_at - timezone.now()
    assert waits <= timedelta(seconds=ADOPTION_DEADLINE_SECONDS)

    # another home is another machine: its worker is hinted at the job and may not have it
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other = start_worker(HOLDFAST_HOME=str(elsewhere))
    other.hint_job(job.pk, times=3)
    wait_until(lambda: "job.not_claimed" in other.said(), "it was refused")
    job.refresh_from_db()
    assert (job.state, job.attempts) == ("queued", 1)

    pass_queue_deadline(job)
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("interrupted", "host_unavailable")
    said = report_text(job)
    assert computer.name in said
    assert job.branch in said
    assert "1 succeeded" in said
    assert model.posts == 1
    recover_again()
