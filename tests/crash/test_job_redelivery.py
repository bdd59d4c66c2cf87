"""Hints of jobs are repeated, lost, and late: one run, and nothing depends on the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.blocking_tools import RELEASE
from tests.support.jobs import (
    calls_of,
    delegate,
    every_job_row,
    held_in_its_call,
    pass_queue_deadline,
    place_for,
    posting,
    recover_again,
    report_text,
    require_job_terminal,
    wait_until_job,
)
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from work.models import WorkStep
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = 5


@pytest.mark.parametrize("times", [3, 6])
def test_a_hint_delivered_many_times_to_two_workers_is_one_run(
    times: int, start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failures H14, H15: also while the tool runs, and after the end"""
    model.script(
        posting(sink, 1, match="Find out."),
        answer("Posted.", response_id="resp_2", match="Find out."),
    )
    sink.script(Reply(hold_head="answer"))
    first, second = start_worker(), start_worker()
    job = delegate(place_for(sink))
    first.hint_job(job.pk, times=times)
    second.hint_job(job.pk, times=times)
    sink.wait_for_gate("answer")
    for worker in (first, second):
        worker.hint_job(job.pk, times=times)
    # a job admitted later is claimed after those hints were taken
    later = delegate(ConversationFactory.create(), "later")
    first.hint_job(later.pk)
    wait_until_job(later)
    sink.release("answer")
    wait_until_job(job)
    first.hint_job(job.pk, times=times)
    last = delegate(ConversationFactory.create(), "last")
    first.hint_job(last.pk)
    wait_until_job(last)

    job.refresh_from_db()
    assert (job.state, job.generation, job.attempts) == ("completed", 1, 1)
    assert report_text(job) == "Posted."
    step = WorkStep.objects.get(job=job)
    assert sink.posts_per_key() == {str(step.invocation_key): 1}
    assert model.posts == 4


def test_a_killed_workers_job_is_completed_with_the_broker_purged(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failures H06, H07: a new worker finds the job in PostgreSQL alone"""
    model.script(
        posting(sink, 1), posting(sink, 2), answer("Both are posted.", response_id="resp_3")
    )
    worker = start_worker(stop_at=["job.between_steps"])
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    worker.wait_until_reached("job.between_steps")
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    worker.purge()

    living = start_worker()
    wait_until_job(job)
    assert (job.state, report_text(job)) == ("completed", "Both are posted.")
    assert (job.owner, job.attempts) == (living.runtime.pk, 2)
    assert (model.posts, sink.posts) == (3, 2)


def test_the_death_of_one_worker_is_seen_and_repaired_by_another(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H06, behaviour O14: within one recovery interval, and nobody runs a command"""
    model.script(posting(sink, 1), answer("Posted.", response_id="resp_2"))
    dying = start_worker(stop_at=["job.outcome_committed"])
    job = delegate(place_for(sink))
    dying.hint_job(job.pk)
    dying.wait_until_reached("job.outcome_committed")
    living = start_worker()
    dying.kill()
    wait_until_job(job)
    assert (job.state, job.owner, job.attempts) == ("completed", living.runtime.pk, 2)
    assert (model.posts, sink.posts) == (2, 1)


def test_a_job_inside_one_long_call_is_left_alone(
    start_worker: WorkerStarter, model: Simulator, tmp_path: Path
) -> None:
    """failures H08, H09; behaviour O5: its lease is renewed whatever the tool does"""
    release = tmp_path / "release"
    model.script(
        tool_calls(("call_1", "block", "{}")), answer("It took long.", response_id="resp_2")
    )
    worker = start_worker(
        DJANGO_SETTINGS_MODULE="tests.support.worker_settings",
        **{RELEASE: str(release)},
        HOLDFAST_LEASE_SECONDS=str(LEASE_SECONDS),
    )
    job = delegate(ConversationFactory.create())
    worker.hint_job(job.pk)
    wait_until(lambda: calls_of(job) == [("running", "")], "it blocks")
    before = every_job_row()
    runtime = worker.runtime
    for leases in (1, 2):

        def renewed_past(leases: int = leases) -> bool:
            runtime.refresh_from_db()
            lived = runtime.renewed_at - runtime.started_at
            return bool(lived.total_seconds() > leases * LEASE_SECONDS)

        wait_until(renewed_past, f"the runtime outlived {leases} leases")
        assert WorkRecovery().run().changed_count == 0
        assert every_job_row() == before
    release.touch()
    wait_until_job(job)
    assert (job.state, job.generation, report_text(job)) == ("completed", 1, "It took long.")
    assert model.posts == 2


def test_a_job_no_worker_ever_took_ends_with_an_honest_report(sink: Simulator) -> None:
    job = delegate(place_for(sink))
    recover_again()
    pass_queue_deadline(job)

    report = WorkRecovery().run()
    assert (report.examined, report.interrupted) == (1, 1)
    require_job_terminal(job)
    assert (job.state, job.error_code, job.attempts) == ("interrupted", "never_started", 0)
    assert "had not begun" in report_text(job)
    recover_again()


def test_a_job_whose_worker_died_and_that_no_other_took_over_ends_with_an_honest_report(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    model.script(posting(sink, 1))
    worker = start_worker()
    job = held_in_its_call(worker, sink)
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    pass_queue_deadline(job)

    assert WorkRecovery().run().interrupted == 1
    require_job_terminal(job)
    assert (job.state, job.error_code, job.attempts) == ("interrupted", "not_adopted", 1)
    assert "not known whether it took effect" in report_text(job)
    after = recover_again()

    # a worker that comes too late changes nothing
    late = start_worker()
    late.hint_job(job.pk, times=3)
    last = delegate(ConversationFactory.create(), "last")
    late.hint_job(last.pk)
    wait_until_job(last)
    assert every_job_row()["work_workstep"] == after["work_workstep"]
    job.refresh_from_db()
    assert (job.state, model.posts, sink.posts) == ("interrupted", 2, 1)
