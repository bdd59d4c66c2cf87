"""Search: what is found, among whose messages, and what is said about how it was found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection

from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.executor import in_thread
from semantic import bounds, search, transitions
from semantic.embedders import factory
from semantic.embedders.embedder import Purpose
from semantic.models import Embedding, Manifest, MessageWords
from semantic.search import Results, Scope
from tests.factories import ConversationFactory, MessageFactory, TurnFactory, UserFactory
from tests.semantic.searching import (
    KnowsMeanings,
    by_words,
    conversation_of,
    derive,
    look,
    said,
    texts,
)
from turns.models import Conversation, Message
from turns.transitions import delete_conversation, delete_message, edit_message

pytestmark = pytest.mark.django_db(transaction=True)

BOAT = "My boat is called Marguerite."
SHIP = "The ship leaves at noon."


# --- what is found ---


async def test_a_synonym_is_found_by_its_meaning_in_the_persons_own_conversation_only() -> None:
    """behaviour U5"""
    mine = await conversation_of(BOAT, "Explain a transaction.", "Soup for dinner.")
    await conversation_of("Her vessel is called Hortense.", "A ship of theirs.")
    found = await look("vessel", Scope(mine.owner_id, mine.pk))
    assert (found.mode, texts(found)) == ("hybrid", [BOAT])
    assert texts(await look("vessel", Scope(mine.owner_id))) == [BOAT]
    assert texts(await by_words("vessel", Scope(mine.owner_id))) == []


async def test_what_has_the_words_and_the_meaning_goes_before_what_has_one_of_them() -> None:
    mine = await conversation_of("The ship of a boat show.", SHIP, "Boat, the word, in rain.")
    found = await look("boat", Scope(mine.owner_id))
    assert texts(found)[0] == "The ship of a boat show."
    scores = [hit.score for hit in found.hits]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(2 / (bounds.RECIPROCAL_RANK_OFFSET + 1), rel=0.05)


async def test_both_sides_of_a_conversation_are_found_once_they_are_complete() -> None:
    def create() -> Conversation:
        done = TurnFactory.create(completed=True)
        running = TurnFactory.create(running=True, conversation=ConversationFactory.create(
            owner=done.conversation.owner))  # fmt: skip
        assert running.assistant_message.state == "streaming"
        MessageFactory.create(
            conversation=running.conversation, role="assistant", state="interrupted",
            text="A boat that was cut",
        )  # fmt: skip
        MessageFactory.create(conversation=done.conversation, answered=True, text=BOAT)
        return done.conversation

    mine = await in_thread(create)
    assert texts(await by_words("boat", Scope(mine.owner_id))) == [BOAT]


# --- whose ---


async def test_another_persons_messages_change_neither_hits_nor_order_nor_scores() -> None:
    """behaviour V17, of messages"""
    mine = await conversation_of(BOAT, SHIP, "Rain all day.")

    async def seen() -> list[Any]:
        return [
            [(hit.message_id, hit.score, hit.found.similarity) for hit in found.hits]
            for scope in (Scope(mine.owner_id), Scope(mine.owner_id, mine.pk))
            for query in ("boat", "vessel", "storm", "a boat for Hortense, all of it")
            for found in (await look(query, scope), await by_words(query, scope))
        ]

    before = await seen()
    for _ in range(3):
        await conversation_of(*[BOAT, SHIP, "A boat.", "Storm, storm, a vessel."] * 5)
    assert await seen() == before


async def test_a_conversation_that_is_not_the_persons_is_refused_as_one_that_never_was() -> (
    None
):
    """behaviour V13"""
    mine, theirs = await conversation_of(BOAT), await conversation_of(BOAT)
    for conversation_id in (theirs.pk, theirs.pk + 1_000):
        with pytest.raises(Refused) as refused:
            await look("boat", Scope(mine.owner_id, conversation_id))
        assert refused.value.code == "scope_refused"


async def test_one_conversation_is_searched_without_the_persons_others() -> None:
    mine = await conversation_of(BOAT)
    await conversation_of(SHIP, "A boat elsewhere.", owner_id=mine.owner_id)
    assert texts(await look("boat", Scope(mine.owner_id, mine.pk))) == [BOAT]
    assert len((await look("boat", Scope(mine.owner_id))).hits) == 3


async def test_nobody_is_found_for_a_person_who_has_said_nothing() -> None:
    await conversation_of(BOAT)
    stranger = await in_thread(UserFactory.create)
    found = await look("boat", Scope(stranger.pk))
    assert (found.mode, found.hits, found.truncated) == ("text", (), False)


# --- when ---


async def test_what_was_said_40_messages_ago_is_found_alone_and_first() -> None:
    """behaviour V1"""
    shipped = factory.from_settings()

    def create() -> tuple[Conversation, Message]:
        conversation = ConversationFactory.create()
        for text in ["The code is ZX-4417-QQ.", *["Soup again.", "Rain on Tuesday."] * 20]:
            MessageFactory.create(conversation=conversation, text=text)
        derive(shipped)
        return conversation, MessageFactory.create(conversation=conversation, text="ZX?")

    mine, asked = await in_thread(create)
    found = await look("ZX-4417-QQ", Scope(mine.owner_id, mine.pk, asked.pk), shipped)
    assert (found.mode, texts(found)) == ("hybrid", ["The code is ZX-4417-QQ."])
    assert texts(await look("soups", Scope(mine.owner_id, mine.pk, asked.pk), shipped))
    assert texts(await look("zeppelin", Scope(mine.owner_id, mine.pk), shipped)) == []


async def test_the_word_itself_goes_before_what_is_merely_near_it() -> None:
    """behaviour V1: a tie of ranks goes to the message that has the words."""
    shipped = factory.from_settings()

    def create() -> Conversation:
        conversation = ConversationFactory.create()
        told = "Rain fell over the harbour while nobody was at home. " * 12 + "QX7R99Z"
        for text in (told, *(f"My code word number {n} is ZX7R9" for n in range(60))):
            MessageFactory.create(conversation=conversation, text=text)
        derive(shipped)
        return conversation

    mine = await in_thread(create)
    found = await look("QX7R99Z", Scope(mine.owner_id), shipped)
    assert "QX7R99Z" in texts(found)[0]
    assert found.hits[0].found.has_words


async def test_what_is_said_or_ends_after_the_question_is_never_found_under_it() -> None:
    """behaviour V4"""
    mine = await conversation_of(BOAT, SHIP, "A boat in the rain.")

    def ask() -> tuple[Message, Message]:
        elsewhere = ConversationFactory.create(owner=mine.owner)
        answering = MessageFactory.create(conversation=elsewhere, assistant=True)
        return answering, MessageFactory.create(conversation=mine, text="Which boat?")

    answering, asked = await in_thread(ask)
    scopes = [Scope(mine.owner_id, mine.pk, asked.pk), Scope(mine.owner_id, None, asked.pk)]
    queries = ("boat", "another boat in Lisbon")

    async def seen() -> list[Results]:
        return [await look(query, scope) for query in queries for scope in scopes]

    before = await seen()
    assert all(len(found.hits) == 3 for found in before)

    def say_more() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE turns_message SET state = 'complete', text = 'A boat, as was said.', "
                "digest = %s, finished_at = clock_timestamp() WHERE id = %s",
                ["d" * 64, answering.pk],
            )
        said(mine, "Another boat.", "One more ship.")

    await in_thread(say_more)
    assert await seen() == before
    assert len((await look("boat", Scope(mine.owner_id))).hits) == 7


# --- what is no longer so ---


async def test_an_edited_message_is_found_at_once_by_its_new_words_and_not_by_the_old() -> None:
    mine = await conversation_of(BOAT)
    (message,) = await in_thread(lambda: list(mine.messages.all()))
    await in_thread(edit_message, mine.owner_id, message.pk, "I own a hound.")
    scope = Scope(mine.owner_id)
    assert texts(await look("boat", scope)) == []
    assert texts(await look("vessel", scope)) == []
    assert texts(await look("hound", scope)) == ["I own a hound."]


async def test_a_removed_message_and_a_removed_conversation_are_not_found_from_then_on() -> (
    None
):
    """failure H69, of what search returns"""
    mine = await conversation_of(BOAT)
    other = await conversation_of(SHIP, owner_id=mine.owner_id)
    (message,) = await in_thread(lambda: list(mine.messages.all()))
    await in_thread(delete_message, mine.owner_id, message.pk)
    assert texts(await look("boat", Scope(mine.owner_id))) == [SHIP]
    await in_thread(delete_conversation, mine.owner_id, other.pk)
    assert texts(await look("boat", Scope(mine.owner_id))) == []
    assert not await in_thread(Embedding.objects.exists)
    assert not await in_thread(MessageWords.objects.exists)


async def test_a_vector_of_words_that_were_replaced_is_invisible_even_if_it_is_there() -> None:
    mine = await conversation_of(BOAT)

    def replace_behind_the_triggers() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(
                "UPDATE turns_message SET text = 'Soup.', digest = %s "
                "WHERE conversation_id = %s",
                ["d" * 64, mine.pk],
            )
            cursor.execute("RESET session_replication_role")

    await in_thread(replace_behind_the_triggers)
    assert await in_thread(Embedding.objects.count) == 1
    assert texts(await look("vessel", Scope(mine.owner_id))) == []


async def test_vectors_of_the_manifest_before_are_never_mixed_with_those_of_the_next() -> None:
    """failure H71, of what search returns"""
    mine = await conversation_of(BOAT, SHIP)
    asked: list[str] = []

    lands = KnowsMeanings("2", ["ship station"])

    class SwapsOnce(KnowsMeanings):
        async def embed(self, texts: Sequence[str], purpose: Purpose) -> Any:
            await in_thread(derive, lands)
            return await super().embed(texts, purpose)

    def embedder_for(manifest: Manifest) -> KnowsMeanings:
        asked.append(manifest.version)
        return SwapsOnce() if manifest.version == "1" else lands

    found = await search.search("station", Scope(mine.owner_id), embedder_for=embedder_for)
    assert asked[-2:] == ["1", "2"]
    assert (found.mode, texts(found)) == ("hybrid", [SHIP])


# --- how ---


class Fails(KnowsMeanings):
    """A service that fails, says nothing for too long, or refuses this one text."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> Any:  # noqa: ARG002
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "fails":
            raise ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE)
        return [ErrorCode.TEXT_NOT_EMBEDDABLE]


@pytest.mark.parametrize("how", ["hangs", "fails", "refuses"])
async def test_without_the_querys_vector_words_are_searched_and_it_is_said_so(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "QUERY_TIMEOUT_SECONDS", 0.05)
    mine = await conversation_of(BOAT, SHIP)
    found = await look("boat", Scope(mine.owner_id), Fails(how))
    assert (found.mode, texts(found)) == ("text", [BOAT])


async def test_it_is_text_without_a_manifest_an_embedder_or_anything_derived_yet() -> None:
    """behaviour U8"""

    def underived() -> Conversation:
        conversation = ConversationFactory.create()
        MessageFactory.create(conversation=conversation, text=BOAT)
        return conversation

    mine = await in_thread(underived)
    scope = Scope(mine.owner_id)
    for _ in ("no manifest", "one that is being built"):
        found = await look("boat", scope)
        assert (found.mode, texts(found)) == ("text", [BOAT])
        assert texts(await look("vessel", scope)) == []
        await in_thread(transitions.begin, KnowsMeanings().identity)
    await in_thread(derive)
    later = await in_thread(underived)
    assert (await look("boat", Scope(later.owner_id))).mode == "text"
    assert (await by_words("boat", scope)).mode == "text"
    found = await look("vessel", scope)
    assert (found.mode, texts(found)) == ("hybrid", [BOAT])


async def test_the_query_is_embedded_as_one_and_once() -> None:
    mine = await conversation_of(BOAT)
    embedder = KnowsMeanings()
    await look("boat", Scope(mine.owner_id))  # which manifest answers is known from then on
    await look("  a boat ", Scope(mine.owner_id), embedder)
    assert embedder.asked == ["a boat"]


# --- bounds ---


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "empty_query"),
        (" \t\n ", "empty_query"),
        ("x" * (bounds.QUERY_MAX_BYTES + 1), "search_query_too_long"),
        ("é" * (bounds.QUERY_MAX_BYTES // 2 + 1), "search_query_too_long"),
        ("bo\x00at", "invalid_text"),
        ("bo\ud800at", "invalid_text"),
    ],
)
async def test_a_query_that_cannot_be_searched_is_refused_with_its_code(
    query: str, code: str
) -> None:
    person = await in_thread(UserFactory.create)
    with pytest.raises((Refused, BoundExceeded), match=code):
        await look(query, Scope(person.pk))


@pytest.mark.parametrize("query", ["x" * bounds.QUERY_MAX_BYTES, "x", 'x"' * 256, "a -" * 170])
async def test_the_longest_and_the_oddest_query_is_answered(query: str) -> None:
    mine = await conversation_of(BOAT)
    assert (await by_words(query, Scope(mine.owner_id))).hits == ()


async def test_hits_stop_at_ten_and_say_that_there_are_more() -> None:
    """behaviour V14"""
    mine = await conversation_of(*[f"Boat number {n}. {'Filling. ' * 200}" for n in range(15)])
    found = await look("boat", Scope(mine.owner_id))
    assert (len(found.hits), found.truncated) == (bounds.HITS_MAX, True)
    few = await look("boat", Scope(mine.owner_id), limit=3)
    assert few.hits == found.hits[:3]
    assert few.truncated
    assert all(len(hit.excerpt.encode()) <= bounds.EXCERPT_MAX_BYTES for hit in found.hits)
    all_of_them = await look("boat -7", Scope(mine.owner_id), limit=1_000)
    assert len(all_of_them.hits) == bounds.HITS_MAX
    exactly = await conversation_of(*[f"Boat {n}." for n in range(10)])
    assert not (await look("boat", Scope(exactly.owner_id))).truncated
