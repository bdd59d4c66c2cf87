"""A deploy: short turns finish, long ones end honestly, and the runtime ends last."""

from __future__ import annotations

import signal

import pytest

from recovery.bounds import DRAIN_SECONDS
from recovery.models import RecoveryEvent
from tests.factories import ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.turns import ask, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import WorkerStarter
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


def test_sigterm_lets_short_turns_finish_and_interrupts_long_ones(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(
        stalled("short", gate="soon", match="short"),
        stalled("long", gate="never", match="long"),
    )
    worker = start_worker()
    short = ask(ConversationFactory.create(), "short")
    long = ask(ConversationFactory.create(), "long")
    worker.hint(short.pk)
    model.wait_for_gate("soon")
    worker.hint(long.pk)
    model.wait_for_gate("never")
    wait_until(lambda: text_of(long) == "long", "the long one's text is committed")
    runtime = worker.runtime

    worker.signal(signal.SIGTERM)
    wait_until(lambda: "host.draining" in worker.said(), "it drains")
    late = ask(ConversationFactory.create(), "late")
    worker.hint(late.pk)
    model.release("soon")
    assert wait_until_ended(short).state == "completed"
    worker.wait(seconds=DRAIN_SECONDS + 15)

    require_terminal(long)
    assert (long.state, long.error_code) == ("interrupted", "runtime_stopped")
    assert text_of(long) == "long"
    runtime.refresh_from_db()
    assert runtime.stop_reason == "runtime_stopped"
    assert long.finished_at is not None
    assert runtime.stopped_at is not None
    assert runtime.stopped_at >= long.finished_at
    late.refresh_from_db()
    assert (late.state, late.generation, model.posts) == ("queued", 0, 2)
    # nothing is left for recovery, and no recovery was needed
    assert TurnRecovery().run().interrupted == 0
    assert not RecoveryEvent.objects.exists()

    model.script(answer("At last."))
    start_worker().hint(late.pk)
    assert wait_until_ended(late).state == "completed"


def test_an_idle_worker_stops_within_seconds(start_worker: WorkerStarter) -> None:
    worker = start_worker()
    runtime = worker.runtime
    assert worker.terminate() < DRAIN_SECONDS
    runtime.refresh_from_db()
    assert runtime.stop_reason == "runtime_stopped"
