"""The API answers to the owner alone, and tells nobody else that there is anything."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client

from config.api import api as ninja
from tests.factories import (
    ComputerFactory,
    ConversationFactory,
    TurnFactory,
    UserFactory,
    WorkJobFactory,
)
from tests.support.api import ask, refusal, signed_in
from tests.turns.endpoints import ENDPOINTS, rows
from turns.models import ApiToken, Turn
from turns.tokens import create_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def turn() -> Turn:
    """Somebody's ended turn."""
    return TurnFactory(completed=True)


@pytest.fixture
def client(turn: Turn) -> Client:
    """That somebody, with a token."""
    return signed_in(turn.conversation.owner_id)


IN_A_QUERY_OR_BODY = [
    ("GET", "/jobs?conversation_id={conversation}", None),
    (
        "POST",
        "/conversations/{own}/jobs",
        {"kind": "coding", "goal": "x", "computer_id": "{computer}"},
    ),
]


WITH_ID = [endpoint for endpoint in ENDPOINTS if "{" in endpoint[1]] + IN_A_QUERY_OR_BODY


def ids_of(turn: Turn) -> dict[str, Any]:
    """Return an id of each kind, all of the turn's person."""
    person = turn.conversation.owner
    return {
        "conversation": turn.conversation_id,
        "turn": turn.pk,
        "message": turn.user_message_id,
        "job": WorkJobFactory(person=person, conversation=turn.conversation).pk,
        "computer": ComputerFactory(person=person).pk,
    }


def named(body: Any, ids: dict[str, Any]) -> Any:
    """Return the body with ids put where it names them."""
    if not isinstance(body, dict):
        return body
    return {key: value.format(**ids) for key, value in body.items()}


def test_the_table_of_endpoints_is_complete() -> None:
    described = ninja.get_openapi_schema()["paths"]
    known = {(method, path) for method, path, _ in ENDPOINTS}
    for path, methods in described.items():
        for method in methods:
            shape = path.removeprefix("/api/v1").replace("_id}", "}")
            assert (method.upper(), shape) in known


@pytest.mark.parametrize(("method", "path", "body"), WITH_ID)
def test_somebody_elses_id_is_answered_like_one_that_names_nothing(
    turn: Turn, method: str, path: str, body: object
) -> None:
    """failure H52"""
    foreign = ids_of(turn)
    other_id = UserFactory().pk
    own = {"own": ConversationFactory(owner_id=other_id, owner=None).pk}
    token = create_token(other_id)
    other = Client(headers={"authorization": f"Bearer {token}"})
    before = rows()
    answers = [ask(other, method, path.format(**foreign, **own), named(body, foreign))]
    for unknown in (
        "999999",
        "0",
        "-1",
        "01",
        "x",
        "9" * 40,
        "9223372036854775808",
        "1.0",
        "%00",
    ):
        nothing = dict.fromkeys(foreign, unknown)
        answers.append(ask(other, method, path.format(**nothing, **own), named(body, nothing)))
    assert {(a.status_code, a.content) for a in answers} == {(404, answers[0].content)}
    assert refusal(answers[0]) == (404, "not_found")
    assert rows() == before


@pytest.mark.parametrize(("method", "path", "body"), ENDPOINTS)
def test_nobody_signed_in_is_told_nothing(
    turn: Turn, method: str, path: str, body: object
) -> None:
    ids = ids_of(turn)
    owner_id = turn.conversation.owner_id
    revoked = create_token(owner_id)
    ApiToken.objects.update(revoked_at=Now())
    before = rows()
    for headers in (
        {},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {revoked}"},
        {"authorization": "Bearer holdfast_\u00e9"},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer " + "x" * 10_000},
    ):
        answer = ask(Client(), method, path.format(**ids), body, **headers)
        assert refusal(answer) == (401, "not_signed_in")
    assert rows() == before


def test_a_session_may_read_and_writes_only_from_its_own_page(turn: Turn) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(turn.conversation.owner)
    assert ask(browser, "GET", f"/turns/{turn.pk}").status_code == 200
    path = f"/conversations/{turn.conversation_id}"
    assert refusal(ask(browser, "PATCH", path, {"title": "x"})) == (403, "csrf_failed")

    browser.get("/login/")
    browser.get(f"/c/{turn.conversation_id}/")
    csrf = browser.cookies["csrftoken"].value
    own = {"x-csrftoken": csrf}
    assert ask(browser, "PATCH", path, {"title": "x"}, **own).status_code == 200
    foreign = {**own, "origin": "https://elsewhere.test"}
    assert refusal(ask(browser, "PATCH", path, {"title": "y"}, **foreign)) == (
        403,
        "csrf_failed",
    )
    browser.logout()
    assert refusal(ask(browser, "PATCH", path, {"title": "x"}, **own)) == (401, "not_signed_in")


def test_a_wrong_token_is_not_made_good_by_a_session(turn: Turn) -> None:
    browser = Client()
    browser.force_login(turn.conversation.owner)
    answer = ask(browser, "GET", f"/turns/{turn.pk}", authorization="Bearer holdfast_wrong")
    assert refusal(answer) == (401, "not_signed_in")


def test_an_inactive_person_is_not_signed_in(client: Client, turn: Turn) -> None:
    type(turn.conversation.owner).objects.update(is_active=False)
    assert refusal(ask(client, "GET", "/conversations")) == (401, "not_signed_in")


def test_a_conversation_of_nobody_else_shows_up_in_a_list(client: Client) -> None:
    ConversationFactory()
    listed = ask(client, "GET", "/conversations").json()["conversations"]
    assert len(listed) == 1
