"""A job that kills its worker every time, and cancels between and during its attempts."""

from __future__ import annotations

import pytest

from recovery.bounds import ADOPTION_ATTEMPTS
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import answer, stalled
from tests.support.jobs import (
    calls_of,
    delegate,
    every_job_row,
    held_in_its_call,
    place_for,
    posting,
    report_text,
    requests_of,
    require_job_terminal,
    wait_until_job,
)
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from work.models import WorkJob
from work.recovery import WorkRecovery
from work.transitions import request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


def nothing_more_happens(job: WorkJob, start_worker: WorkerStarter) -> None:
    """Hint three times to a living worker and sweep: the job stays as it is."""
    job.refresh_from_db()
    mark = job.write_mark
    worker = start_worker()
    worker.hint_job(job.pk, times=3)
    last = delegate(ConversationFactory.create(), "Say hello.")
    worker.hint_job(last.pk)
    wait_until_job(last)
    assert WorkRecovery().run().changed_count == 0
    job.refresh_from_db()
    assert job.write_mark == mark


def test_a_job_that_kills_its_worker_every_time_ends_after_three_adoptions(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    """failure H20"""
    model.script(stalled("Thinking.", repeat=True, match="Bring them down."))
    job = delegate(ConversationFactory.create(), "Bring them down.")
    for attempt in range(1, ADOPTION_ATTEMPTS + 2):
        worker = start_worker(stop_at=["job.provider_called"])
        worker.hint_job(job.pk)
        worker.wait_until_reached("job.provider_called")
        job.refresh_from_db()
        # counted before any work began
        assert (job.state, job.attempts) == ("running", attempt)
        worker.kill()
        report = WorkRecovery().run()
        assert report.changed_count == 1
        assert report.adopted == (attempt <= ADOPTION_ATTEMPTS)
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("interrupted", "adoption_attempts_exhausted")
    assert (job.attempts, model.posts) == (4, 4)
    assert requests_of(job) == ["interrupted"] * 4
    assert "started 4 times" in report_text(job)
    nothing_more_happens(job, start_worker)
    assert model.posts == 5  # the other job's


def test_a_cancel_between_two_attempts_is_the_end(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H21"""
    model.script(posting(sink, 1))
    worker = start_worker(stop_at=["job.step_requested"])
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    worker.wait_until_reached("job.step_requested")
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    assert calls_of(job) == [("requested", "")]

    _, accepted = request_cancel(job.person_id, job.pk)
    assert accepted
    require_job_terminal(job)
    assert (job.state, job.error_code, job.attempts) == ("cancelled", "cancelled", 1)
    assert calls_of(job) == [("cancelled", "not_started")]
    assert "cancelled" in report_text(job)
    nothing_more_happens(job, start_worker)
    assert (model.posts, sink.posts) == (2, 0)


def test_a_cancel_of_a_job_whose_worker_is_dead_needs_no_worker(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H03"""
    model.script(posting(sink, 1))
    worker = start_worker()
    job = held_in_its_call(worker, sink)
    worker.kill()
    request_cancel(job.person_id, job.pk)
    # the death is not noticed yet, so the request is durable, and the sweep carries it out
    assert WorkRecovery().run().changed_count <= 1
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("cancelled", "cancelled")
    assert calls_of(job) == [("interrupted", "outcome_unknown")]
    nothing_more_happens(job, start_worker)
    assert (model.posts, sink.posts) == (2, 1)


@pytest.mark.parametrize("probe", ["job.claimed", "job.step_requested", "job.between_steps"])
def test_nothing_starts_after_a_cancel_has_committed(
    probe: str, start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failures H21, H29"""
    model.script(posting(sink, 1), posting(sink, 2))
    worker = start_worker(stop_at=[probe])
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    worker.wait_until_reached(probe)
    posts, webhooks = model.posts, sink.posts
    request_cancel(job.person_id, job.pk)
    worker.release(probe)
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.error_code, job.generation) == ("cancelled", "cancelled", 1)
    assert {code for _, code in calls_of(job)} <= {"", "not_started"}
    assert (model.posts, sink.posts) == (posts, webhooks)
    assert worker.running


def test_a_cancel_cuts_short_what_runs(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H27: what comes back later is not taken"""
    model.script(posting(sink, 1))
    worker = start_worker()
    job = held_in_its_call(worker, sink)
    request_cancel(job.person_id, job.pk)
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, calls_of(job)) == ("cancelled", [("interrupted", "outcome_unknown")])
    before = every_job_row()
    sink.release("answer")
    nothing_more_happens(job, start_worker)
    assert every_job_row()["work_workstep"] == before["work_workstep"]
    assert (model.posts, sink.posts) == (2, 1)


def test_a_stalled_request_is_closed_by_a_cancel(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    """behaviour P2: what had arrived of the answer is no report"""
    model.script(stalled("Thinking."))
    worker = start_worker()
    job = delegate(ConversationFactory.create())
    worker.hint_job(job.pk)
    model.wait_for_gate("answer")
    request_cancel(job.person_id, job.pk)
    wait_until_job(job)
    model.wait_for_disconnects()
    assert (job.state, requests_of(job)) == ("cancelled", ["cancelled"])
    assert report_text(job) == "This job was cancelled."
    wait_until(lambda: '"job.ended"' in worker.said(), "the worker says so")


def test_a_worker_goes_on_after_a_job_that_failed(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(Reply(status=500, match="first"), answer("Well.", match="second"))
    worker = start_worker()
    first = delegate(ConversationFactory.create(), "first")
    worker.hint_job(first.pk)
    wait_until_job(first)
    assert (first.state, first.error_code) == ("failed", "provider_unavailable")
    second = delegate(ConversationFactory.create(), "second")
    worker.hint_job(second.pk)
    assert wait_until_job(second).state == "completed"
