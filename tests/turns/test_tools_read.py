"""`read_message`: the person's own messages, and nobody else's."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from recovery.executor import in_thread
from tests.factories import ConversationFactory, MessageFactory
from turns import bounds
from turns.models import Conversation, Message
from turns.tools import read_message
from turns.tools.registry import Invocation
from turns.tools.runner import Outcome, invoke

pytestmark = pytest.mark.django_db(transaction=True)


async def conversation() -> Conversation:
    created: Conversation = await in_thread(ConversationFactory.create)
    return created


async def message(**columns: Any) -> Message:
    created: Message = await in_thread(lambda: MessageFactory.create(**columns))
    return created


async def read(owner_id: int, message_id: object, offset: int = 0) -> Outcome:
    arguments = {"message_id": str(message_id), "offset": offset}
    invocation: Invocation[Any] = Invocation(
        owner_id, 1, 1, uuid4(), read_message.TOOL.parse(json.dumps(arguments))
    )
    return await invoke(read_message.TOOL, invocation)


async def test_a_message_of_any_of_the_persons_conversations_is_read_whole() -> None:
    here = await conversation()
    said = await message(conversation=await elsewhere(here), text="It is called Marguerite. 🛶")
    outcome = await read(here.owner_id, said.pk)
    assert outcome.state == "succeeded"
    assert json.loads(outcome.result) == {
        "message_id": str(said.pk),
        "role": "user",
        "state": "complete",
        "created_at": said.created_at.isoformat(timespec="seconds"),
        "text": "It is called Marguerite. 🛶",
        "next_offset": None,
    }


async def elsewhere(here: Conversation) -> Conversation:
    created: Conversation = await in_thread(
        lambda: ConversationFactory.create(owner_id=here.owner_id)
    )
    return created


async def test_a_foreign_message_is_not_found_exactly_as_an_unknown_one() -> None:
    """behaviour C10"""
    mine, foreign = await conversation(), await message(text="a private sentence")
    answers = [
        await read(mine.owner_id, message_id)
        for message_id in (foreign.pk, foreign.pk + 1_000, 0, -1, "x", "9" * 19)
    ]
    assert {(answer.state, answer.error_code) for answer in answers} == {
        ("failed", "not_found")
    }
    assert len({answer.result for answer in answers}) == 1


async def test_an_answer_still_being_written_is_not_read() -> None:
    streaming = await message(assistant=True)
    owner_id = await in_thread(lambda: streaming.conversation.owner_id)
    assert (await read(owner_id, streaming.pk)).error_code == "not_found"


@pytest.mark.parametrize("letter", ["x", "é", "🛶", "\x01"])
async def test_a_long_message_comes_in_parts_that_fit_a_result_and_lose_nothing(
    letter: str,
) -> None:
    text = letter * (bounds.ASSISTANT_TEXT_MAX_BYTES // len(letter.encode()))
    said = await message(answered=True, text=text)
    owner_id = await in_thread(lambda: said.conversation.owner_id)
    parts: list[str] = []
    offset: int | None = 0
    while offset is not None:
        outcome = await read(owner_id, said.pk, offset)
        assert outcome.state == "succeeded"
        assert len(outcome.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES
        part = json.loads(outcome.result)
        parts.append(part["text"])
        offset = part["next_offset"]
    assert "".join(parts) == text


async def test_past_its_end_a_message_has_nothing_more() -> None:
    said = await message(text="short")
    owner_id = await in_thread(lambda: said.conversation.owner_id)
    part = json.loads((await read(owner_id, said.pk, 100)).result)
    assert (part["text"], part["next_offset"]) == ("", None)
