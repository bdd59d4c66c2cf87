"""The broker is down or tears a hint, or work is paused: the row waits and is served later."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from django.db.models.functions import Now

from config.settings import hint_scope
from recovery.models import Pulse, RecoveryEvent
from recovery.switches import State, set_release
from tests.factories import ConversationFactory, TurnFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.turns import ask, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import ROOT, Worker, WorkerStarter
from turns.limits import Limits
from turns.models import Conversation, Turn

pytestmark = pytest.mark.django_db(transaction=True)

# Nothing listens on port 1. What this process does is what the web process does.
ASK_WITHOUT_BROKER = """
import django
django.setup()
from turns import dispatch, transitions
turn = transitions.admit_turn({owner}, {conversation}, "Is anybody there?").turn
print(turn.state, dispatch.flush(1.0))
"""


def ask_without_broker(conversation: Conversation, environment: dict[str, str]) -> str:
    """Ask in a process whose broker is down; return what it saw."""
    script = ASK_WITHOUT_BROKER.format(
        owner=conversation.owner_id, conversation=conversation.pk
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **environment,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "BROKER_URL": "amqp://127.0.0.1:1//",
        },
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout.splitlines()[-1]


def test_a_question_asked_while_the_broker_is_down_is_answered_later(
    process_environment: dict[str, str], start_worker: WorkerStarter, model: Simulator
) -> None:
    """failure H07, H51: from PostgreSQL alone, with the broker empty."""
    model.script(answer("I am."))
    conversation = ConversationFactory.create()
    assert ask_without_broker(conversation, process_environment) == "queued False"

    worker = start_worker()
    turn = Turn.objects.get(conversation=conversation)
    wait_until_ended(turn)
    assert (turn.state, text_of(turn), turn.attempts) == ("completed", "I am.", 1)
    assert turn.dispatch_count >= 1
    assert turn.owner == worker.runtime.pk
    assert model.posts == 1


def tear_hint(worker: Worker) -> Path:
    """Leave a message in the worker's queue that ends in the middle."""
    queue = hint_scope(worker.environment["DATABASE_URL"].rsplit("/", 1)[1])
    folder = Path(worker.environment["HOLDFAST_HOME"]) / "broker"
    torn = folder / f"00000000000000000001_torn.{queue}.msg"
    aside = torn.with_suffix(".aside")
    aside.write_bytes(b'{"body": "W1sx')
    aside.rename(torn)
    return torn


def test_a_torn_hint_ends_no_worker_and_its_turn_is_started_by_the_sweep(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(answer("One.", match="first"), answer("Two.", match="second"))
    worker = start_worker(BROKER_URL="")
    first = ask(ConversationFactory.create(), "first")
    torn = tear_hint(worker)
    wait_until(lambda: not torn.exists(), "the torn hint is dropped")
    second = ask(ConversationFactory.create(), "second")
    worker.hint(second.pk)
    assert wait_until_ended(second).state == "completed"
    assert wait_until_ended(first).state == "completed"
    assert first.dispatch_count == 1
    assert worker.running


def test_nothing_is_claimed_while_disabled_and_all_of_it_after_resume(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(answer("Late."))
    set_release("turns", State.DISABLED)
    worker = start_worker()
    turn = TurnFactory.create(next_dispatch_at=Now() - timedelta(minutes=1))
    worker.hint(turn.pk)
    wait_until(lambda: "turn.not_claimed" in worker.said(), "the claim is refused")
    asked_at = Pulse.objects.get().last_at
    wait_until(
        lambda: Pulse.objects.filter(swept_at__gt=asked_at + timedelta(seconds=1)).exists(),
        "a sweep has seen it",
    )
    turn.refresh_from_db()
    assert (turn.state, turn.generation, turn.dispatch_count) == ("queued", 0, 0)

    set_release("turns", State.OPEN)
    wait_until_ended(turn)
    assert (turn.state, turn.attempts, turn.dispatch_count) == ("completed", 1, 1)


def test_a_turn_past_its_deadline_is_ended_by_its_worker_with_the_text_it_has(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("Once upon", match="slow"), answer("Here.", match="again"))
    worker = start_worker()
    slow = TurnFactory.create(
        user_message__text="slow", limits=Limits(wall_clock_seconds=4).snapshot()
    )
    worker.hint(slow.pk)
    wait_until_ended(slow)
    require_terminal(slow)
    assert (slow.state, slow.error_code) == ("failed", "deadline_passed")
    assert text_of(slow) == "Once upon"
    assert slow.claimed_at is not None
    assert slow.finished_at is not None
    assert (slow.finished_at - slow.claimed_at).total_seconds() >= 4
    assert not RecoveryEvent.objects.exists()  # no sweep did it
    assert slow.owner == worker.runtime.pk  # the worker lives, and goes on
    again = ask(slow.conversation, "again")
    worker.hint(again.pk)
    assert wait_until_ended(again).state == "completed"
