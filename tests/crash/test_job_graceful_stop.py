"""A deploy: a job comes to its next checkpoint, is given back, and another completes it.

A planned release is no adoption: it is not charged to the attempts a job has.
"""

from __future__ import annotations

import signal

import pytest

from recovery.bounds import DRAIN_SECONDS
from recovery.models import RecoveryEvent
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.jobs import (
    calls_of,
    delegate,
    held_in_its_call,
    place_for,
    post_call,
    posting,
    report_text,
    requests_of,
    require_job_terminal,
    wait_until_job,
)
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from work.models import WorkJob, WorkStep
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)


def begin_to_stop(worker: Worker) -> None:
    """SIGTERM; return once the loops drain."""
    worker.signal(signal.SIGTERM)
    wait_until(lambda: worker.said().count('"host.draining"') == 2, "both loops drain")


def given_back(job: WorkJob, worker: Worker) -> None:
    """Return once the worker has ended well and the job waits, its budget untouched."""
    runtime = worker.runtime
    worker.wait(seconds=DRAIN_SECONDS + 15)
    runtime.refresh_from_db()
    assert runtime.stop_reason == "runtime_stopped"
    job.refresh_from_db()
    assert (job.state, job.owner) == ("queued", None)
    assert (job.attempts, job.planned_releases) == (1, 1)
    event = RecoveryEvent.objects.get(row_id=job.pk)
    assert (event.action, event.cause) == ("adopted", "runtime_stopped")
    report = WorkRecovery().run()
    assert (report.adopted, report.interrupted) == (0, 0)


def completed_by_another(job: WorkJob, start_worker: WorkerStarter) -> None:
    """Return once another worker has completed the job."""
    start_worker()
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("completed", "")
    assert (job.attempts, job.planned_releases) == (2, 1)


def test_a_response_under_way_is_stored_and_its_calls_are_left_to_the_next_worker(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    call = Reply(hold_head="thinking", steps=posting(sink, 1).steps)
    model.script(call, answer("Posted.", response_id="resp_2"))
    worker = start_worker()
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    model.wait_for_gate("thinking")
    begin_to_stop(worker)
    model.release("thinking")
    given_back(job, worker)
    assert (calls_of(job), requests_of(job)) == ([("requested", "")], ["completed"])
    assert sink.posts == 0

    completed_by_another(job, start_worker)
    assert (report_text(job), model.posts, sink.posts) == ("Posted.", 2, 1)


def test_a_call_under_way_comes_to_its_outcome_and_the_next_one_waits(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    model.script(
        tool_calls(post_call(sink, "call_1", 1), post_call(sink, "call_2", 2)),
        answer("Posted.", response_id="resp_2"),
    )
    worker = start_worker()
    job = held_in_its_call(worker, sink)
    begin_to_stop(worker)
    sink.release("answer")
    given_back(job, worker)
    assert calls_of(job) == [("succeeded", ""), ("requested", "")]
    assert sink.posts == 1

    completed_by_another(job, start_worker)
    steps = WorkStep.objects.filter(job=job)
    assert sink.posts_per_key() == {str(step.invocation_key): 1 for step in steps}
    assert (report_text(job), model.posts) == ("Posted.", 2)


def test_what_does_not_come_to_an_end_in_time_is_cut_short(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    model.script(
        posting(sink, 1, match="Alpha."),
        stalled("Hm.", match="Omega."),
        answer("It may be posted.", response_id="resp_2", match="Alpha."),
        answer("Thought.", response_id="resp_3", match="Omega."),
    )
    sink.script(Reply(hold_head="never"))
    worker = start_worker()
    posts = delegate(place_for(sink), "Alpha.")
    worker.hint_job(posts.pk)
    sink.wait_for_gate("never")
    thinks = delegate(ConversationFactory.create(), "Omega.")
    worker.hint_job(thinks.pk)
    model.wait_for_gate("answer")
    begin_to_stop(worker)
    late = delegate(ConversationFactory.create(), "late")
    worker.hint_job(late.pk)
    for job in (posts, thinks):
        given_back(job, worker)
    assert calls_of(posts) == [("interrupted", "outcome_unknown")]
    assert requests_of(thinks) == ["interrupted"]
    late.refresh_from_db()
    assert (late.state, late.generation) == ("queued", 0)

    for job in (posts, thinks):
        completed_by_another(job, start_worker)
    assert report_text(posts) == "It may be posted."
    assert report_text(thinks) == "Thought."
    assert sink.posts == 1
    assert wait_until_job(late).state == "completed"


def test_an_idle_worker_stops_within_seconds(start_worker: WorkerStarter) -> None:
    assert start_worker().terminate() < DRAIN_SECONDS
