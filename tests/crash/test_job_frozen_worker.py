"""A worker frozen past its lease loses its jobs to another; waking up it writes nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from recovery.models import Runtime
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, tool_calls
from tests.support.blocking_tools import RELEASE
from tests.support.jobs import (
    calls_of,
    delegate,
    every_job_row,
    place_for,
    posting,
    report_text,
    requests_of,
    require_job_terminal,
    wait_until_job,
)
from tests.support.turns import ask, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from work.models import WorkJob, WorkStep
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = "5"


def adopted_elsewhere(job: WorkJob, start_worker: WorkerStarter) -> Worker:
    """Bury the frozen worker and let another complete its job."""
    wait_until(lambda: WorkRecovery().run().adopted == 1, "the orphan is released")
    living = start_worker()
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.generation, job.attempts) == ("completed", 3, 2)
    assert job.owner == living.runtime.pk
    return living


def wake(worker: Worker, runtime: Runtime) -> None:
    """SIGCONT; return when the process has fenced itself and is somebody else."""
    worker.signal(signal.SIGCONT)
    wait_until(lambda: worker.runtime.pk != runtime.pk, "it registers anew")
    wait_until(lambda: '"job.fence_lost"' in worker.said(), "it lets go of the job")


def test_a_worker_frozen_before_it_starts_a_call_leaves_the_call_to_its_adopter(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H11"""
    model.script(posting(sink, 1), answer("Posted.", response_id="resp_2"))
    frozen = start_worker(stop_at=["job.step_requested"], HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    job = delegate(place_for(sink))
    frozen.hint_job(job.pk)
    frozen.wait_until_reached("job.step_requested")
    runtime = frozen.runtime
    frozen.freeze()
    adopted_elsewhere(job, start_worker)
    step = WorkStep.objects.get(job=job)
    assert (step.state, step.generation, sink.posts) == ("succeeded", 3, 1)
    before = every_job_row()

    # it wakes right before it would start the call
    frozen.release("job.step_requested")
    wake(frozen, runtime)
    assert frozen.said().count('"runtime.fenced"') == 1
    assert every_job_row() == before
    assert (model.posts, sink.posts) == (2, 1)

    again = delegate(ConversationFactory.create(), "again")
    frozen.hint_job(again.pk)
    assert wait_until_job(again).state == "completed"


def test_a_worker_frozen_with_a_call_under_way_cannot_store_its_outcome(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failure H11"""
    model.script(posting(sink, 1), answer("It may be posted.", response_id="resp_2"))
    frozen = start_worker(stop_at=["job.step_running"], HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    job = delegate(place_for(sink))
    frozen.hint_job(job.pk)
    frozen.wait_until_reached("job.step_running")
    runtime = frozen.runtime
    frozen.freeze()
    adopted_elsewhere(job, start_worker)
    assert calls_of(job) == [("interrupted", "outcome_unknown")]
    before = every_job_row()
    frozen.release("job.step_running")
    wake(frozen, runtime)
    assert every_job_row() == before
    # the model was told that nobody knows; the effect is there once at most
    assert sink.posts <= 1
    assert model.posts == 2


def test_a_worker_frozen_while_the_model_answers_cannot_store_the_answer(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    stream = Stream()
    frames = [*stream.opening(), *stream.message("Stale ", "words.")]
    model.script(
        frames_reply(send(*frames[:5]), hold("frozen"), send(*frames[5:], stream.terminal())),
        answer("Fresh words.", response_id="resp_2"),
    )
    frozen = start_worker(HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    job = delegate(ConversationFactory.create())
    frozen.hint_job(job.pk)
    model.wait_for_gate("frozen")
    runtime = frozen.runtime
    frozen.freeze()
    # the rest of the answer lies in the frozen process's socket
    model.release("frozen")
    adopted_elsewhere(job, start_worker)
    before = every_job_row()
    wake(frozen, runtime)
    assert every_job_row() == before
    assert report_text(job) == "Fresh words."
    assert requests_of(job) == ["interrupted", "completed"]
    assert model.posts == 2


def test_a_worker_whose_loop_of_jobs_hangs_is_dead_though_its_turns_go_on(
    start_worker: WorkerStarter, model: Simulator, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    model.script(
        tool_calls(("call_1", "block_loop", "{}"), match="Hang."),
        answer("It hung.", response_id="resp_2", match="Hang."),
        answer("Hello."),
    )
    worker = start_worker(
        DJANGO_SETTINGS_MODULE="tests.support.worker_settings",
        **{RELEASE: str(release)},
        HOLDFAST_LEASE_SECONDS=LEASE_SECONDS,
        # its own sweep shall not be what releases its job
        HOLDFAST_SWEEP_SECONDS="3600",
    )
    runtime = worker.runtime
    job = delegate(ConversationFactory.create(), "Hang.")
    worker.hint_job(job.pk)
    wait_until(lambda: calls_of(job) == [("running", "")], "it hangs")
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    assert wait_until_ended(turn).state == "completed"

    wait_until(lambda: WorkRecovery().run().adopted == 1, "the orphan is released")
    runtime.refresh_from_db()
    assert runtime.stop_reason == "lease_expired"
    assert calls_of(job) == [("interrupted", "outcome_unknown")]
    release.touch()
    wait_until(lambda: worker.runtime.pk != runtime.pk, "it registers anew")
    wait_until_job(job)
    assert (job.state, job.owner, job.attempts) == ("completed", worker.runtime.pk, 2)
    assert calls_of(job) == [("interrupted", "outcome_unknown")]
    assert report_text(job) == "It hung."
