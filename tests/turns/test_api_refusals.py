"""Every refusal of the API is {"code", "message"}, tells nothing and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.test.client import MULTIPART_CONTENT

from config.api import api as ninja
from config.asgi import application
from config.body_limit import BODY_MAX_BYTES
from recovery.errors import ErrorCode
from tests.factories import (
    ComputerFactory,
    ConversationFactory,
    TurnFactory,
    UserFactory,
    WorkJobFactory,
)
from turns import projection
from turns.models import ApiToken, Conversation, Message, Turn
from turns.tokens import create_token
from work.models import WorkJob

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def turn() -> Turn:
    """Somebody's ended turn."""
    return TurnFactory(completed=True)


@pytest.fixture
def client(turn: Turn) -> Client:
    """That somebody, with a token."""
    token = create_token(turn.conversation.owner_id)
    return Client(headers={"authorization": f"Bearer {token}"}, raise_request_exception=False)


def refusal(answer: Any) -> tuple[int, str]:
    """Return the status and code of an answer in our form; fail on any other."""
    content = answer.json()
    assert content.keys() == {"code", "message"}, content
    assert content["message"] == ErrorCode(content["code"]).label
    return answer.status_code, content["code"]


def rows() -> list[tuple[Any, ...]]:
    """Return what a refused request must not change."""
    return [
        *Conversation.objects.order_by("pk").values_list("pk", "title", "revision"),
        *Message.objects.order_by("pk").values_list("pk", "text"),
        *Turn.objects.order_by("pk").values_list("pk", "state", "write_mark"),
        *WorkJob.objects.order_by("pk").values_list("pk", "state", "write_mark"),
    ]


ENDPOINTS = [
    ("GET", "/conversations", None),
    ("POST", "/conversations", {}),
    ("PATCH", "/conversations/{conversation}", {"title": "x"}),
    ("DELETE", "/conversations/{conversation}", None),
    ("POST", "/conversations/{conversation}/turns", {"text": "x"}),
    ("GET", "/conversations/{conversation}/messages", None),
    ("GET", "/turns/{turn}", None),
    ("POST", "/turns/{turn}/cancel", None),
    ("GET", "/messages/{message}", None),
    ("PATCH", "/messages/{message}", {"text": "x"}),
    ("DELETE", "/messages/{message}", None),
    ("GET", "/jobs", None),
    ("POST", "/conversations/{conversation}/jobs", {"kind": "deep_work", "goal": "x"}),
    ("GET", "/jobs/{job}", None),
    ("POST", "/jobs/{job}/cancel", None),
    ("GET", "/computers", None),
    ("GET", "/search", None),
]
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


def ask(client: Client, method: str, path: str, body: object = None, **headers: str) -> Any:
    data = "" if body is None else json.dumps(body)
    return client.generic(
        method, f"/api/v1{path}", data, content_type="application/json", headers=headers
    )


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


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('""', "empty_message"),
        ('" \\n\\t "', "empty_message"),
        ('"\\u0000"', "invalid_text"),
        ('"a\\u0000b"', "invalid_text"),
        ('"\\ud800"', "invalid_text"),
        ('"\\udc00 x"', "invalid_text"),
        (json.dumps("x" * 8_001), "message_too_long"),
        (json.dumps("ü" * 4_001), "message_too_long"),
        ("null", "invalid_request"),
        ("1", "invalid_request"),
        ("[]", "invalid_request"),
        ("true", "invalid_request"),
        ("{}", "invalid_request"),
    ],
)
@pytest.mark.parametrize("place", ["turns", "message"])
def test_words_that_cannot_be_taken_are_named(
    client: Client, turn: Turn, text: str, code: str, place: str
) -> None:
    """behaviour AD2"""
    method, path = {
        "turns": ("POST", f"/conversations/{turn.conversation_id}/turns"),
        "message": ("PATCH", f"/messages/{turn.user_message_id}"),
    }[place]
    before = rows()
    answer = client.generic(
        method, f"/api/v1{path}", f'{{"text": {text}}}', content_type="application/json"
    )
    assert refusal(answer) == (422, code)
    assert rows() == before


@pytest.mark.parametrize(
    "text",
    ["x" * 8_000, "ü" * 4_000, "\U0001f469\u200d\U0001f680", "a\u2028b", "\\ud83d\\ude00"],
)
def test_words_at_the_bound_and_split_pairs_are_taken(
    client: Client, turn: Turn, text: str
) -> None:
    body = f'{{"text": "{text}"}}'
    answer = client.generic(
        "POST",
        f"/api/v1/conversations/{turn.conversation_id}/turns",
        body,
        content_type="application/json",
    )
    assert answer.status_code == 202
    assert answer.json()["user"]["text"] == json.loads(body)["text"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff",
        b"\xed\xa0\x80",
        b'{"text": "x"} x',
        b"[" * 50_000,
        b'{"text": NaN}',
        b'{"text": ' + b"9" * 10_000 + b"}",
        b"text=x",
    ],
)
def test_bodies_that_are_not_understood_are_refused(
    client: Client, turn: Turn, body: bytes
) -> None:
    path = f"/api/v1/conversations/{turn.conversation_id}/turns"
    for kind in ("application/json", "text/plain", MULTIPART_CONTENT):
        status, code = refusal(client.generic("POST", path, body, content_type=kind))
        assert status in {400, 422}
        assert code == "invalid_request"


@pytest.mark.parametrize(
    "body", ["null", "[]", "[null]", "5", "true", '"x"', '[["title", "x"]]']
)
@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, path, body in ENDPOINTS if body is not None]
)
def test_a_body_is_a_json_object(
    client: Client, turn: Turn, method: str, path: str, body: str
) -> None:
    """A string has a method `title`, which is no title."""
    before = rows()
    filled = path.format(
        conversation=turn.conversation_id, turn=turn.pk, message=turn.user_message_id
    )
    answer = client.generic(method, f"/api/v1{filled}", body, content_type="application/json")
    assert refusal(answer) == (422, "invalid_request")
    assert rows() == before


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/conversations", "title", "x" * 201),
        ("/conversations", "title", 1),
        ("/conversations", "client_key", ""),
        ("/conversations", "client_key", "x" * 201),
        ("/conversations", "client_key", "a\x00"),
        ("/conversations/{}/turns", "client_key", ""),
        ("/conversations/{}/turns", "client_key", "x" * 201),
        ("/conversations/{}/turns", "client_key", {}),
    ],
)
def test_fields_out_of_bounds_are_refused(
    client: Client, turn: Turn, path: str, field: str, value: object
) -> None:
    before = rows()
    body = {"text": "x", field: value}
    assert refusal(ask(client, "POST", path.format(turn.conversation_id), body)) == (
        422,
        "invalid_request",
    )
    assert rows() == before


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=101",
        "limit=x",
        "limit=1e1",
        "before=x",
        "before=",
        "before=-1",
        "before=%00",
    ],
)
@pytest.mark.parametrize("path", ["/conversations", "/conversations/{}/messages"])
def test_pages_out_of_bounds_are_refused(
    client: Client, turn: Turn, path: str, query: str
) -> None:
    answer = ask(client, "GET", f"{path.format(turn.conversation_id)}?{query}")
    assert refusal(answer) == (422, "invalid_request")


def test_unknown_addresses_and_wrong_methods_are_refused_in_our_form(client: Client) -> None:
    assert refusal(ask(client, "GET", "/nothing")) == (404, "not_found")
    assert refusal(ask(client, "GET", "/conversations/")) == (404, "not_found")
    assert refusal(client.get("/api/")) == (404, "not_found")
    answer = ask(client, "PUT", "/conversations")
    assert refusal(answer) == (405, "method_not_allowed")
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "POST"}
    assert refusal(client.get("/api/v1/conversations", headers={"host": "elsewhere"})) == (
        400,
        "invalid_request",
    )


def test_a_body_over_its_bound_is_refused(client: Client, turn: Turn) -> None:
    path = f"/conversations/{turn.conversation_id}/turns"
    answer = ask(client, "POST", path, {"text": "x" * BODY_MAX_BYTES})
    assert refusal(answer) == (413, "request_too_large")


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_its_bound_is_refused_before_it_is_kept(declared: bool) -> None:
    headers = [(b"host", b"testserver"), (b"content-type", b"application/json")]
    if declared:
        headers.append((b"content-length", str(BODY_MAX_BYTES + 1).encode()))
    request = ApplicationCommunicator(
        application,
        {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": "/api/v1/conversations",
            "raw_path": b"/api/v1/conversations",
            "query_string": b"",
            "headers": headers,
        },
    )
    for _ in range(1 if declared else 3):
        await request.send_input(
            {"type": "http.request", "body": b"x" * (BODY_MAX_BYTES // 2), "more_body": True}
        )
    start = await request.receive_output(10)
    assert (start["type"], start["status"]) == ("http.response.start", 413)
    body = await request.receive_output(10)
    assert json.loads(body["body"])["code"] == "request_too_large"
    await request.send_input({"type": "http.disconnect"})
    await request.wait(10)


@pytest.fixture
def without_database() -> Iterator[None]:
    """Point every new connection at a port where nothing listens."""
    described = connections["default"].settings_dict
    port, described["PORT"] = described["PORT"], "1"
    yield
    described["PORT"] = port


def test_a_database_that_is_away_is_said_so(client: Client, without_database: None) -> None:
    """The eight database threads keep their connections, so they are ended first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    answers = [ask(client, "GET", "/conversations") for _ in range(10)]
    assert {refusal(answer) for answer in answers} == {(503, "service_unavailable")}
    assert answers[0].headers["Retry-After"] == "1"


def test_our_own_failure_tells_nothing_of_it(
    client: Client,
    turn: Turn,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """behaviour A4"""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret of the failure")

    monkeypatch.setattr(projection, "turn", broken)
    answer = ask(client, "GET", f"/turns/{turn.pk}")
    assert refusal(answer) == (500, "internal_error")
    assert "secret" not in answer.content.decode() + "".join(capfd.readouterr())


def test_too_many_questions_are_told_when_to_come_back(client: Client, turn: Turn) -> None:
    for _ in range(50):
        TurnFactory(conversation=turn.conversation, completed=True)
    answer = ask(client, "POST", f"/conversations/{turn.conversation_id}/turns", {"text": "x"})
    assert refusal(answer) == (429, "rate_limited")
    assert 1 <= int(answer.headers["Retry-After"]) <= 60


def test_an_inactive_person_is_not_signed_in(client: Client, turn: Turn) -> None:
    type(turn.conversation.owner).objects.update(is_active=False)
    assert refusal(ask(client, "GET", "/conversations")) == (401, "not_signed_in")


def test_a_conversation_of_nobody_else_shows_up_in_a_list(client: Client) -> None:
    ConversationFactory()
    listed = ask(client, "GET", "/conversations").json()["conversations"]
    assert len(listed) == 1
