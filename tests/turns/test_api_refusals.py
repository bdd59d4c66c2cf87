"""Every refusal of the API is {"code", "message"}, tells nothing and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import connection, connections
from django.test import Client
from django.test.client import MULTIPART_CONTENT

from config.asgi import application
from config.body_limit import BODY_MAX_BYTES
from tests.factories import TurnFactory
from tests.support.api import ask, refusal, signed_in
from tests.turns.endpoints import ENDPOINTS, rows
from turns import projection
from turns.models import Turn

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def turn() -> Turn:
    """Somebody's ended turn."""
    return TurnFactory(completed=True)


@pytest.fixture
def client(turn: Turn) -> Client:
    """That somebody, with a token."""
    return signed_in(turn.conversation.owner_id)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('""', "empty_message"),
        ('" \\n\\t "', "empty_message"),
        ('"\\u3164"', "empty_message"),
        ('"\\ufe0f\\u034f"', "empty_message"),
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
