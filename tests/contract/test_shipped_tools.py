"""The shipped tools inside a whole turn: what the model asks, and what comes of it outside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.executor import in_thread
from tests.factories import ConversationFactory, MessageFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.serving import provider_steps, serving, tool_steps
from turns.models import Note

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


async def test_what_a_search_found_is_read_and_answered_with(model: Simulator) -> None:
    """behaviour C7"""
    words = "The boat is called Marguerite. " + "It sails well. " * 100

    def earlier() -> Any:
        conversation = ConversationFactory.create()
        return conversation, MessageFactory.create(conversation=conversation, text=words)

    conversation, said = await in_thread(earlier)
    model.script(
        tool_calls(("call_1", "search_history", '{"query": "boat"}')),
        tool_calls(
            ("call_2", "read_message", json.dumps({"message_id": str(said.pk)})),
            response_id="resp_2",
        ),
        answer("Marguerite, as you said.", response_id="resp_3"),
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("My boat?", conversation))
    assert turn.state == "completed"
    found, read = await tool_steps(turn)
    assert (found.state, read.state) == ("succeeded", "succeeded")
    assert json.loads(found.result)["hits"][0]["message_id"] == str(said.pk)
    assert json.loads(read.result)["text"] == words
    assert [step.response_id for step in await provider_steps(turn)] == [
        "resp_1", "resp_2", "resp_3"
    ]  # fmt: skip
    # what was read reaches the model whole, under its own call
    (told,) = [i for i in model.requests()[2].json["input"] if i.get("output") == read.result]
    assert told["call_id"] == "call_2"


async def test_somebody_elses_message_is_told_as_not_found_like_an_unknown_one(
    model: Simulator,
) -> None:
    """behaviour C10, AD13"""
    foreign = await in_thread(lambda: MessageFactory.create(text="a private sentence"))
    model.script(
        tool_calls(
            ("call_1", "read_message", json.dumps({"message_id": str(foreign.pk)})),
            ("call_2", "read_message", json.dumps({"message_id": str(foreign.pk + 1_000)})),
        ),
        answer("There is no such message.", response_id="resp_2"),
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("Read it."))
    assert turn.state == "completed"
    known, unknown = await tool_steps(turn)
    assert (known.state, known.error_code) == ("failed", "not_found")
    assert (known.error_code, known.result) == (unknown.error_code, unknown.result)
    assert b"private" not in b"".join(request.body for request in model.requests())


async def test_a_note_is_remembered_told_in_another_conversation_and_forgotten(
    model: Simulator,
) -> None:
    """behaviour C11"""
    first = await in_thread(ConversationFactory.create)
    other = await in_thread(lambda: ConversationFactory.create(owner_id=first.owner_id))
    model.script(
        tool_calls(("call_1", "note_save", '{"text": "Prefers tea."}')),
        answer("I will remember.", response_id="resp_2"),
        tool_calls(("call_1", "note_list", "{}"), response_id="resp_3"),
        answer("You prefer tea.", response_id="resp_4"),
    )
    async with serving(model.base_url) as runtime:
        saved = await runtime.serve(await runtime.ask("I prefer tea. Remember that.", first))
        listed = await runtime.serve(await runtime.ask("What do you remember?", other))
        (step,) = await tool_steps(saved)
        assert (step.state, step.effect) == ("succeeded", "reversible")
        note_id = json.loads(step.result)["note_id"]
        (step,) = await tool_steps(listed)
        assert [n["text"] for n in json.loads(step.result)["notes"]] == ["Prefers tea."]

        model.script(
            tool_calls(
                ("call_1", "note_remove", json.dumps({"note_id": note_id})),
                response_id="resp_5",
            ),
            answer("Forgotten.", response_id="resp_6"),
        )
        forgot = await runtime.serve(await runtime.ask("Forget it.", other))
    (step,) = await tool_steps(forgot)
    assert json.loads(step.result) == {"disposition": "forgotten"}
    assert not await in_thread(Note.objects.exists)
