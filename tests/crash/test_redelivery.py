"""An effect outside happens at most once, whatever is killed or delivered again."""

from __future__ import annotations

import json

import pytest

from tests.factories import ConversationFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.turns import ask, everything, require_terminal, text_of, wait_until_ended
from tests.support.worker import WorkerStarter
from turns.models import Conversation, ToolStep
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def conversation(sink: Simulator) -> Conversation:
    """A person's conversation, who allows the sink as a webhook."""
    conversation = ConversationFactory.create()
    WebhookAddressFactory.create(owner=conversation.owner, url=f"{sink.url}/hook")
    return conversation


def webhook_call(sink: Simulator) -> Reply:
    arguments = json.dumps({"url": f"{sink.url}/hook", "body": '{"n": 1}'})
    return tool_calls(("call_1", "webhook_post", arguments), text="Sending. ")


def test_a_hint_delivered_many_times_to_two_workers_is_one_run(
    conversation: Conversation, start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """failures H14, H15, H16"""
    model.script(webhook_call(sink), answer("Sent.", response_id="resp_2"))
    first, second = start_worker(), start_worker()
    turn = ask(conversation)
    first.hint(turn.pk, times=6)
    second.hint(turn.pk, times=6)
    wait_until_ended(turn)
    first.hint(turn.pk, times=3)
    last = ask(conversation, "Anything else?")
    first.hint(last.pk)
    wait_until_ended(last)
    assert (turn.state, text_of(turn)) == ("completed", "Sending. Sent.")
    assert (turn.generation, turn.attempts) == (1, 1)
    step = ToolStep.objects.get(turn=turn)
    assert sink.posts_per_key() == {str(step.invocation_key): 1}
    assert model.posts == 3


def test_a_worker_killed_while_a_webhook_is_in_flight_leaves_an_unknown_outcome(
    conversation: Conversation, start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    model.script(webhook_call(sink))
    sink.script(Reply(hold_head="answer"))
    worker = start_worker()
    turn = ask(conversation)
    worker.hint(turn.pk)
    sink.wait_for_gate("answer")
    worker.kill()
    assert TurnRecovery().run().interrupted == 1
    require_terminal(turn)
    step = ToolStep.objects.get(turn=turn)
    assert (step.state, step.error_code) == ("interrupted", "outcome_unknown")
    before = everything()

    model.script(answer("I do not know whether it was sent.", response_id="resp_2"))
    living = start_worker()
    living.hint(turn.pk, times=3)
    again = ask(conversation, "Did you send it?")
    living.hint(again.pk)
    assert wait_until_ended(again).state == "completed"
    assert sink.posts_per_key() == {str(step.invocation_key): 1}
    assert model.posts == 2
    # the model is told that it is unknown, and the call is paired with exactly one result
    told = [i for i in model.requests()[-1].json["input"] if i["type"].startswith("function")]
    assert [item["type"] for item in told] == ["function_call", "function_call_output"]
    assert "unknown" in told[1]["output"]
    assert [row for row in everything()["ToolStep"] if row["turn_id"] == turn.pk] == before[
        "ToolStep"
    ]
