"""A worker frozen past its lease is buried; waking up it writes nothing and starts afresh."""

from __future__ import annotations

import json
import signal

import pytest

from recovery.models import Runtime
from tests.factories import ConversationFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, tool_calls
from tests.support.turns import ask, everything, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from tests.support.worker import Worker, WorkerStarter
from turns.models import ToolStep, Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)

LEASE_SECONDS = "5"


def buried_and_interrupted(turn: Turn) -> None:
    """Sweep until the frozen worker is dead for the database and its turn has ended."""
    wait_until(lambda: TurnRecovery().run().interrupted == 1, "the orphan is interrupted")
    require_terminal(turn)
    assert (turn.state, turn.error_code) == ("interrupted", "lease_expired")


def registered_anew(worker: Worker, before: Runtime) -> bool:
    return worker.runtime.pk != before.pk


def test_a_frozen_worker_changes_nothing_when_it_wakes_and_fences_itself(
    start_worker: WorkerStarter, model: Simulator
) -> None:
    stream = Stream()
    frames = [*stream.opening(), *stream.message("Once ", "upon a time.")]
    model.script(
        frames_reply(send(*frames[:5]), hold("frozen"), send(*frames[5:], stream.terminal()))
    )
    worker = start_worker(HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    turn = ask(ConversationFactory.create())
    worker.hint(turn.pk)
    wait_until(lambda: text_of(turn) == "Once ", "the first text is committed")
    runtime = worker.runtime
    worker.freeze()
    # the rest of the answer lies in the frozen process's socket
    model.release("frozen")
    buried_and_interrupted(turn)
    runtime.refresh_from_db()
    assert runtime.stop_reason == "lease_expired"
    before = everything()

    worker.signal(signal.SIGCONT)
    wait_until(lambda: registered_anew(worker, runtime), "it registers anew")
    wait_until(lambda: '"turn.fence_lost"' in worker.said(), "it lets go of the turn")
    assert worker.said().count('"runtime.fenced"') == 1
    assert worker.said().count('"turn.fence_lost"') == 1
    assert everything() == before
    assert text_of(turn) == "Once "

    model.script(answer("Here."))
    again = ask(turn.conversation, "Again?")
    worker.hint(again.pk)
    assert wait_until_ended(again).state == "completed"
    assert again.owner == worker.runtime.pk
    assert model.posts == 2


def test_a_worker_frozen_before_it_starts_a_tool_does_not_start_it_when_it_wakes(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    conversation = ConversationFactory.create()
    WebhookAddressFactory.create(owner=conversation.owner, url=f"{sink.url}/hook")
    arguments = json.dumps({"url": f"{sink.url}/hook", "body": "{}"})
    model.script(tool_calls(("call_1", "webhook_post", arguments)))
    worker = start_worker(stop_at=["turn.step_requested"], HOLDFAST_LEASE_SECONDS=LEASE_SECONDS)
    turn = ask(conversation)
    worker.hint(turn.pk)
    worker.wait_until_reached("turn.step_requested")
    runtime = worker.runtime
    worker.freeze()
    buried_and_interrupted(turn)
    before = everything()
    # it wakes right before it would start the tool
    worker.release("turn.step_requested")
    worker.signal(signal.SIGCONT)
    wait_until(lambda: registered_anew(worker, runtime), "it registers anew")
    model.script(answer("Here."))
    again = ask(conversation, "Again?")
    worker.hint(again.pk)
    assert wait_until_ended(again).state == "completed"
    assert sink.posts == 0
    step = ToolStep.objects.get(turn=turn)
    assert (step.state, step.error_code) == ("interrupted", "not_started")
    assert everything()["ToolStep"] == before["ToolStep"]
