"""The shipped tools inside a whole turn: what the model asks, and what comes of it outside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.executor import in_thread
from tests.factories import ConversationFactory, MessageFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.serving import serving, tool_steps

pytestmark = pytest.mark.django_db(transaction=True)


async def test_search_history_finds_earlier_messages_of_this_conversation_only(
    model: Simulator,
) -> None:
    def earlier() -> Any:
        conversation = ConversationFactory.create()
        MessageFactory.create(conversation=conversation, text="The boat is called Marguerite.")
        MessageFactory.create(text="The boat of somebody else is called Hortense.")
        return conversation

    conversation = await in_thread(earlier)
    model.script(
        tool_calls(("call_1", "search_history", '{"query": "boat"}')),
        answer("Marguerite.", response_id="resp_2"),
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("What is my boat called?", conversation))
    assert turn.state == "completed"
    (step,) = await tool_steps(turn)
    (hit,) = json.loads(step.result)["hits"]
    assert hit["role"] == "user"
    assert "Marguerite" in hit["excerpt"]


async def test_a_webhook_is_posted_once_under_the_key_of_its_step(
    model: Simulator, sink: Simulator
) -> None:
    conversation = await in_thread(ConversationFactory.create)
    url = f"{sink.url}/hook?a=1"
    await in_thread(WebhookAddressFactory.create, owner_id=conversation.owner_id, url=url)
    arguments = json.dumps({"url": url, "body": '{"hello": "world"}'})
    model.script(
        tool_calls(("call_1", "webhook_post", arguments)), answer("Sent.", response_id="r2")
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("Send it.", conversation))
    assert turn.state == "completed"
    (step,) = await tool_steps(turn)
    assert (step.state, step.effect) == ("succeeded", "external")
    (request,) = sink.requests()
    assert (request.path, request.json) == ("/hook?a=1", {"hello": "world"})
    assert sink.posts_per_key() == {str(step.invocation_key): 1}
    assert json.loads(step.result)["status"] == 200
