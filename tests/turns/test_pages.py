"""Pages of messages: next to one another without gaps, from any place of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.factories import ConversationFactory, MessageFactory, UserFactory
from turns import pages
from turns.models import Conversation
from turns.tokens import create_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user() -> User:
    return UserFactory.create()


@pytest.fixture
def conversation(user: User) -> Conversation:
    return ConversationFactory.create(owner=user)


@pytest.fixture
def ids(conversation: Conversation) -> list[str]:
    """The ids of nine messages, oldest first, between those of another conversation."""
    other = ConversationFactory.create(owner=conversation.owner)
    made = []
    for _ in range(9):
        MessageFactory.create(conversation=other)
        made.append(str(MessageFactory.create(conversation=conversation).pk))
    MessageFactory.create(conversation=other)
    return made


class Program:
    """One person's program."""

    def __init__(self, user: User) -> None:
        self._client = Client(headers={"authorization": f"Bearer {create_token(user.pk)}"})

    def __call__(self, place: object, **asked: str | int) -> tuple[int, Any]:
        """Return the status and the JSON of a page."""
        answer = self._client.get(f"/api/v1/conversations/{place}/messages", asked)
        return answer.status_code, json.loads(answer.content)

    def page(self, place: Conversation, **asked: str | int) -> tuple[list[str], Any, Any]:
        """Return the ids oldest first, and what leads on to older and to newer ones."""
        status, page = self(place.pk, **asked)
        assert status == 200
        return [m["id"] for m in page["messages"]][::-1], page["next"], page["previous"]


@pytest.fixture
def ask(user: User) -> Program:
    return Program(user)


def test_without_a_place_they_are_the_newest(
    ask: Program, conversation: Conversation, ids: list[str]
) -> None:
    assert ask.page(conversation, limit=4) == (ids[5:], ids[5], None)
    assert ask.page(conversation) == (ids, None, None)


def test_those_around_a_message_are_it_and_as_many_on_both_sides(
    ask: Program, conversation: Conversation, ids: list[str]
) -> None:
    assert ask.page(conversation, around=ids[4], limit=5) == (ids[2:7], ids[2], ids[6])
    assert ask.page(conversation, around=ids[4], limit=1) == ([ids[4]], ids[4], ids[4])
    assert ask.page(conversation, around=ids[4], limit=2) == (ids[4:6], ids[4], ids[5])
    # where one side has fewer, there are fewer
    assert ask.page(conversation, around=ids[0], limit=5) == (ids[:3], None, ids[2])
    assert ask.page(conversation, around=ids[8], limit=5) == (ids[6:], ids[6], None)
    assert ask.page(conversation, around=ids[4]) == (ids, None, None)


def test_those_after_a_message_are_the_next_ones_and_not_the_newest(
    ask: Program, conversation: Conversation, ids: list[str]
) -> None:
    assert ask.page(conversation, after=ids[2], limit=3) == (ids[3:6], ids[3], ids[5])
    assert ask.page(conversation, after=ids[5], limit=3) == (ids[6:], ids[6], None)
    assert ask.page(conversation, after=ids[8]) == ([], None, None)
    # a message that was removed still has a place
    conversation.messages.filter(pk=int(ids[3])).delete()
    assert ask.page(conversation, after=ids[3], limit=2)[0] == ids[4:6]
    assert ask.page(conversation, before=ids[3], limit=2)[0] == ids[1:3]


def test_from_any_message_both_ways_lead_over_every_message_once(
    ask: Program, conversation: Conversation, ids: list[str]
) -> None:
    for found in ids:
        seen, older, newer = ask.page(conversation, around=found, limit=2)
        while older:
            before, older, back = ask.page(conversation, before=older, limit=2)
            assert back == before[-1]
            seen = before + seen
        while newer:
            after, back, newer = ask.page(conversation, after=newer, limit=2)
            assert back == after[0]
            seen += after
        assert seen == ids


def test_what_is_not_there_has_nothing_around_it(
    ask: Program, conversation: Conversation, ids: list[str]
) -> None:
    foreign = MessageFactory.create()
    beside = MessageFactory.create(conversation=ConversationFactory(owner=conversation.owner))
    conversation.messages.filter(pk=int(ids[3])).delete()
    for away in (foreign.pk, beside.pk, ids[3], 2**63 - 1):
        status, answer = ask(conversation.pk, around=away)
        assert (status, answer["code"]) == (404, "not_found")
    for place in ("around", "after", "before"):
        status, answer = ask(foreign.conversation_id, **{place: foreign.pk})
        assert (status, answer["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "asked",
    [
        {"around": "x"}, {"after": ""}, {"around": "-1"}, {"after": str(2**63)},
        {"before": "9", "after": "1"}, {"around": "5", "before": "9"},
    ],
)  # fmt: skip
def test_a_place_is_one_id(
    ask: Program, conversation: Conversation, asked: dict[str, str]
) -> None:
    status, answer = ask(conversation.pk, **asked)
    assert (status, answer["code"]) == (422, "invalid_request")


@pytest.mark.parametrize("limit", [0, 101])
def test_a_page_around_a_message_is_bounded_too(
    ask: Program, conversation: Conversation, ids: list[str], limit: int
) -> None:
    assert ask(conversation.pk, around=ids[4], limit=limit)[0] == 422


def test_a_page_is_one_statement_and_every_row_of_it_is_found_by_an_index(
    conversation: Conversation, ids: list[str]
) -> None:
    place = (conversation.pk, conversation.owner_id)
    for asked in ({}, {"before": int(ids[4])}, {"after": int(ids[4])}, {"around": int(ids[4])}):
        with CaptureQueriesContext(connection) as queries:
            pages.messages(*place, **asked, limit=4)
        (statement,) = queries
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
            cursor.execute(f"EXPLAIN {statement['sql']}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            cursor.execute("RESET enable_seqscan")
        assert "Seq Scan" not in plan, plan


# --- as the page asks for them ---


def test_the_page_is_given_a_screen_full_around_a_message(
    user: User, conversation: Conversation
) -> None:
    made = [str(MessageFactory.create(conversation=conversation).pk) for _ in range(90)]
    foreign = MessageFactory.create()
    client = Client()
    client.force_login(user)
    address = f"/c/{conversation.pk}/messages/"
    page = client.get(address, {"around": made[45]}).json()
    shown = [message["id"] for message in page["messages"]][::-1]
    assert (shown, page["next"], page["previous"]) == (made[16:76], made[16], made[75])
    assert "html" in page["messages"][0]
    page = client.get(address, {"after": made[75]}).json()
    shown = [message["id"] for message in page["messages"]][::-1]
    assert (shown, page["next"], page["previous"]) == (made[76:], made[76], None)
    for wrong in (
        {"around": str(foreign.pk)}, {"around": "x"}, {"after": ""}, {},
        {"around": made[1], "after": made[2]},
    ):  # fmt: skip
        assert client.get(address, wrong).status_code == 404
    theirs = f"/c/{foreign.conversation_id}/messages/"
    assert client.get(theirs, {"around": str(foreign.pk)}).status_code == 404
