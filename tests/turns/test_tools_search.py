"""`search_history`: earlier words of this conversation, and of no other."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from recovery.executor import in_thread
from tests.factories import ConversationFactory, MessageFactory
from turns.models import Conversation, Message
from turns.tools import search_history
from turns.tools.registry import Invocation
from turns.tools.runner import Outcome, invoke

pytestmark = pytest.mark.django_db(transaction=True)


async def conversation_with(*texts: str) -> tuple[Conversation, Message]:
    """Return a conversation with these messages, and the question now being answered."""

    def create() -> tuple[Conversation, Message]:
        conversation = ConversationFactory.create()
        for text in texts:
            MessageFactory.create(conversation=conversation, text=text)
        return conversation, MessageFactory.create(conversation=conversation, text="boat? now")

    return await in_thread(create)


async def search(
    conversation: Conversation, asked: Message, query: str, owner_id: int | None = None
) -> Outcome:
    arguments = search_history.TOOL.parse(json.dumps({"query": query}))
    invocation: Invocation[Any] = Invocation(
        owner_id or conversation.owner_id, conversation.pk, asked.pk, uuid4(), arguments
    )
    return await invoke(search_history.TOOL, invocation)


def excerpts(outcome: Outcome) -> list[str]:
    assert outcome.state == "succeeded"
    return [hit["excerpt"] for hit in json.loads(outcome.result)["hits"]]


async def test_earlier_messages_are_found_by_word_and_by_part_of_one() -> None:
    conversation, asked = await conversation_with(
        "My boat is called Marguerite.", "Das Boot heißt Hortense.", "Nothing of the kind."
    )
    assert excerpts(await search(conversation, asked, "boat")) == [
        "My boat is called Marguerite."
    ]
    assert excerpts(await search(conversation, asked, "BOAT marguerite")) == [
        "My boat is called Marguerite."
    ]
    assert excerpts(await search(conversation, asked, "heiß")) == ["Das Boot heißt Hortense."]
    assert excerpts(await search(conversation, asked, "zeppelin")) == []


async def test_neither_other_conversations_nor_the_question_itself_are_found() -> None:
    conversation, asked = await conversation_with("A boat of mine.")
    other, _ = await conversation_with("A boat of yours.")
    assert excerpts(await search(conversation, asked, "boat")) == ["A boat of mine."]
    # even with the id of somebody else's conversation
    stolen = await search(other, asked, "boat", owner_id=conversation.owner_id)
    assert excerpts(stolen) == []


async def test_hits_and_excerpts_are_bounded() -> None:
    long = "filler " * 500 + "boat " + "filler " * 500
    conversation, asked = await conversation_with(*[long] * 15)
    found = excerpts(await search(conversation, asked, "boat"))
    assert len(found) == search_history.HITS_MAX
    for excerpt in found:
        assert "boat" in excerpt
        assert len(excerpt.encode()) <= search_history.EXCERPT_MAX_BYTES


async def test_what_is_left_out_is_marked_and_more_hits_than_are_given_are_said() -> None:
    """behaviour V14"""
    long = "filler " * 500
    for texts, is_cut in (
        ([f"{long}boat.{long}", "A boat."], False),
        ([f"boat {n}" for n in range(search_history.HITS_MAX)], False),
        ([f"boat {n}" for n in range(search_history.HITS_MAX + 1)], True),
    ):
        conversation, asked = await conversation_with(*texts)
        outcome = await search(conversation, asked, "boat")
        assert json.loads(outcome.result)["truncated"] is is_cut
        for excerpt in excerpts(outcome):
            is_long = len(excerpt) > 100
            assert (excerpt[0] == "…", excerpt[-1] == "…") == (is_long, is_long)


@pytest.mark.parametrize("query", ["%", "_", "' OR 1=1 --", "(((", '"unclosed', "b:*", "!"])
async def test_a_query_is_words_and_not_a_language(query: str) -> None:
    conversation, asked = await conversation_with("A boat.")
    assert excerpts(await search(conversation, asked, query)) == []


async def test_a_search_that_fails_is_a_failed_step_and_an_honest_code() -> None:
    """behaviour C8"""
    conversation, asked = await conversation_with("A boat.")

    def rename(there: bool) -> None:
        names = ("turns_message", "turns_message_away")
        old, new = names if there else names[::-1]
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")

    await in_thread(rename, True)
    try:
        outcome = await search(conversation, asked, "boat")
    finally:
        await in_thread(rename, False)
    assert (outcome.state, outcome.error_code) == ("failed", "lexical_unavailable")
