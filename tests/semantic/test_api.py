"""`GET /api/v1/search`: who asks, what is asked, and exactly what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient, Client

from config.api import api
from recovery.errors import ErrorCode
from recovery.executor import in_thread
from semantic import bounds
from semantic import search as searching
from semantic.embedders import factory
from semantic.embedders.embedder import Purpose, Vector
from semantic.search import search as search_of
from tests.factories import ConversationFactory, MessageFactory, UserFactory
from tests.semantic.searching import KnowsMeanings, derive
from turns.models import Message
from turns.tokens import create_token

pytestmark = pytest.mark.django_db(transaction=True)

BOAT = "My boat is called Marguerite."


@pytest.fixture
def user(transactional_db: None) -> User:
    return UserFactory.create()


@pytest.fixture
def client(user: User) -> Client:
    return Client(headers={"authorization": f"Bearer {create_token(user.pk)}"})


def said(user: User, *texts: str) -> list[Message]:
    conversation = ConversationFactory.create(owner=user)
    messages = [MessageFactory.create(conversation=conversation, text=text) for text in texts]
    derive(factory.from_settings())
    return messages


def ask(client: Client, query: str) -> tuple[int, Any]:
    answer = client.get("/api/v1/search", {"q": query})
    return answer.status_code, answer.json()


def test_it_answers_with_exactly_the_mode_and_the_hits_of_the_person(
    client: Client, user: User
) -> None:
    mine, _ = said(user, BOAT, "The doctor said so.")
    said(UserFactory.create(), "Their boat is called Hortense.")
    status, found = ask(client, "boat")
    (hit,) = found["hits"]
    assert (status, found["mode"], set(found)) == (200, "hybrid", {"mode", "hits"})
    assert set(hit) == {"message_id", "conversation_id", "score", "excerpt"}
    assert hit["message_id"] == str(mine.pk)
    assert hit["conversation_id"] == str(mine.conversation_id)
    assert hit["score"] == pytest.approx(2 / (bounds.RECIPROCAL_RANK_OFFSET + 1), abs=1e-6)
    assert hit["excerpt"] == BOAT


def test_before_anything_is_derived_it_says_that_it_went_by_words(
    client: Client, user: User
) -> None:
    MessageFactory.create(conversation=ConversationFactory.create(owner=user), text=BOAT)
    status, found = ask(client, "boat")
    assert (status, found["mode"], len(found["hits"])) == (200, "text", 1)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "empty_query"),
        ("   ", "empty_query"),
        ("x" * 513, "search_query_too_long"),
        ("\U0001f6a2" * 129, "search_query_too_long"),
        ("a\x00b", "invalid_text"),
    ],
)
def test_a_query_out_of_bounds_is_refused_with_its_code(
    client: Client, query: str, code: str
) -> None:
    assert ask(client, query) == (
        422,
        {"code": code, "message": str(ErrorCode(code).label)},
    )


@pytest.mark.parametrize(
    "unread", ["x " + "-" * 40 + "y", ("y" * 2_000 + " ") * 600], ids=["too deep", "too long"]
)
def test_a_query_that_the_database_cannot_read_is_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    monkeypatch.setattr(searching, "query_of", lambda _: unread)
    code = "invalid_request"
    refusal = (422, {"code": code, "message": str(ErrorCode(code).label)})
    assert ask(client, "boat") == refusal


def test_broken_utf8_and_a_missing_query_are_no_failures_of_ours(client: Client) -> None:
    assert client.get("/api/v1/search?q=%ED%A0%80boat%FF").status_code == 200
    assert client.get("/api/v1/search").json()["code"] == "invalid_request"
    assert client.post("/api/v1/search?q=x").json()["code"] == "method_not_allowed"


def test_nobody_who_is_not_signed_in_searches(user: User) -> None:
    said(user, BOAT)
    answer = Client().get("/api/v1/search?q=boat")
    assert (answer.status_code, answer.json()["code"]) == (401, "not_signed_in")


def test_the_page_searches_with_its_session_cookie(user: User) -> None:
    said(user, BOAT)
    browser = Client()
    browser.force_login(user)
    assert browser.get("/api/v1/search?q=boat").json()["hits"]


def test_it_is_described_with_its_refusals() -> None:
    described = api.get_openapi_schema()["paths"]["/api/v1/search"]["get"]
    assert set(described["responses"]) == {200, 400, 401, 422, 429, 500, 503}
    (parameter,) = described["parameters"]
    assert (parameter["name"], parameter["required"]) == ("q", True)


async def test_one_person_takes_four_searches_at_once_and_nobody_elses(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fifth is told to come back; those under way and other people go on."""
    others = await in_thread(UserFactory.create)

    def prepare() -> list[str]:
        for each in (user, others):
            conversation = ConversationFactory.create(owner=each)
            MessageFactory.create(conversation=conversation, text=BOAT)
        derive()
        return [create_token(user.pk), create_token(others.pk)]

    mine, theirs = await in_thread(prepare)
    under_way, may_go = asyncio.Semaphore(0), asyncio.Event()

    class Holds(KnowsMeanings):
        async def embed(
            self, texts: Sequence[str], purpose: Purpose
        ) -> Sequence[Vector | ErrorCode]:
            under_way.release()
            await may_go.wait()
            return await super().embed(texts, purpose)

    monkeypatch.setattr(searching, "search", partial(search_of, embedder_for=lambda _: Holds()))

    async def search(token: str) -> Any:
        bearer = {"authorization": f"Bearer {token}"}
        return await AsyncClient().get("/api/v1/search?q=boat", headers=bearer)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        searches = [group.create_task(search(mine)) for _ in range(bounds.SEARCHES_PER_PERSON)]
        for _ in searches:
            await under_way.acquire()
        refused = await search(mine)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.headers["Retry-After"] == "1"
        searches.append(group.create_task(search(theirs)))
        await under_way.acquire()
        may_go.set()
    assert [task.result().status_code for task in searches] == [200] * len(searches)
    assert (await search(mine)).status_code == 200
