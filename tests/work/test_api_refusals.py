"""Every refusal of the API of jobs has its code, tells nothing and starts nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from tests.factories import ComputerFactory, ConversationFactory
from tests.support.api import refusal, signed_in
from turns.models import Conversation
from work import bounds
from work.models import WorkJob

pytestmark = pytest.mark.django_db(transaction=True)

GOOD = {"kind": "deep_work", "goal": "Find the cause."}
LONE = "\ud800"


@pytest.fixture
def conversation() -> Conversation:
    return ConversationFactory()


@pytest.fixture
def client(conversation: Conversation) -> Client:
    return signed_in(conversation.owner_id)


def post(client: Client, conversation: Conversation, body: Any) -> Any:
    data = body if isinstance(body, str) else json.dumps(body)
    path = f"/api/v1/conversations/{conversation.pk}/jobs"
    return client.post(path, data, content_type="application/json")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"goal": ""}, "empty_goal"),
        ({"goal": " \n\u2003"}, "empty_goal"),
        ({"goal": "\u3164"}, "empty_goal"),
        ({"goal": "\ufe0f\u034f"}, "empty_goal"),
        ({"goal": "x" * (bounds.GOAL_MAX_BYTES + 1)}, "goal_too_long"),
        ({"goal": "é" * (bounds.GOAL_MAX_BYTES // 2 + 1)}, "goal_too_long"),
        ({"context": "x" * (bounds.CONTEXT_MAX_BYTES + 1)}, "context_too_long"),
        ({"goal": "nul \x00"}, "invalid_text"),
        ({"context": "nul \x00"}, "invalid_text"),
        ({"goal": LONE}, "invalid_text"),
        ({"context": LONE}, "invalid_text"),
        ({"cwd": LONE}, "invalid_text"),
        ({"agent": "\x00"}, "invalid_text"),
        ({"client_key": LONE}, "invalid_text"),
        ({"client_key": ""}, "invalid_request"),
        ({"client_key": "x" * 201}, "invalid_request"),
        ({"agent": "x" * (bounds.AGENT_MAX_CHARS + 1)}, "invalid_request"),
        ({"kind": "holiday"}, "invalid_request"),
        ({"kind": None}, "invalid_request"),
        ({"goal": 7}, "invalid_request"),
        ({"goal": None}, "invalid_request"),
        ({"context": None}, "invalid_request"),
        ({"cwd": None}, "invalid_request"),
        ({"agent": None}, "invalid_request"),
        ({"computer_id": 7}, "invalid_request"),
        ({"wall_clock_seconds": "60"}, "invalid_request"),
        ({"wall_clock_seconds": True}, "invalid_request"),
        ({"wall_clock_seconds": 60.5}, "invalid_request"),
        ({"wall_clock_seconds": 0}, "wall_clock_out_of_range"),
        ({"wall_clock_seconds": -1}, "wall_clock_out_of_range"),
        ({"wall_clock_seconds": 10**30}, "wall_clock_out_of_range"),
        ({"wall_clock_seconds": bounds.WALL_CLOCK_SECONDS + 1}, "wall_clock_out_of_range"),
        ({"kind": "computer"}, "job_kind_unavailable"),
        ({"kind": "coding"}, "computer_required"),
    ],
)
def test_what_cannot_be_done_is_refused(
    client: Client, conversation: Conversation, change: dict[str, Any], code: str
) -> None:
    answer = post(client, conversation, {**GOOD, **change})
    assert refusal(answer) == (422, code)
    assert not WorkJob.objects.exists()
    conversation.refresh_from_db()
    assert conversation.revision == 0


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '"goal"', "7", '{"kind": "deep_work"}', '{"goal": "x"}']
)
def test_what_is_no_request_is_not_understood(
    client: Client, conversation: Conversation, body: str
) -> None:
    status, code = refusal(post(client, conversation, body))
    assert (status in {400, 422}, code) == (True, "invalid_request")


@pytest.mark.parametrize(
    "cwd",
    [
        "/",
        "/srv",
        "/srv/projects/..",
        "/srv/projects/../../etc",
        "/srv/projects-of-others",
        "srv/projects",
        "projects",
        "/srv/projects/" + "x" * bounds.PATH_MAX_BYTES,
    ],
)
def test_a_directory_outside_the_roots_is_refused(
    client: Client, conversation: Conversation, cwd: str
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/projects"])
    body = {**GOOD, "kind": "coding", "computer_id": str(computer.pk), "cwd": cwd}
    assert refusal(post(client, conversation, body)) == (422, "outside_roots")
    assert not WorkJob.objects.exists()


def test_with_several_roots_the_directory_has_to_be_named(
    client: Client, conversation: Conversation
) -> None:
    computer = ComputerFactory(person=conversation.owner, roots=["/srv/a", "/srv/b"])
    body = {**GOOD, "kind": "coding", "computer_id": str(computer.pk)}
    assert refusal(post(client, conversation, body)) == (422, "outside_roots")


def test_a_revoked_computer_is_answered_like_one_that_is_not_there(
    client: Client, conversation: Conversation
) -> None:
    """failure H52"""
    revoked = ComputerFactory(person=conversation.owner, revoked=True)
    foreign = ComputerFactory()
    answers = [
        post(client, conversation, {**GOOD, "kind": "coding", "computer_id": named})
        for named in (str(revoked.pk), str(foreign.pk), "999999", "x", "")
    ]
    assert {refusal(answer) for answer in answers} == {(404, "not_found")}
    assert len({answer.content for answer in answers}) == 1


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=101", "limit=x", "before=x", "before=", "before=-1", "after=x",
     "after=0", "state=closed", "state=", "state=queued"],
)  # fmt: skip
def test_pages_out_of_bounds_are_refused(client: Client, query: str) -> None:
    assert refusal(client.get(f"/api/v1/jobs?{query}")) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/jobs", {"GET"}),
        ("DELETE", "/jobs/1", {"GET"}),
        ("PATCH", "/jobs/1", {"GET"}),
        ("GET", "/jobs/1/cancel", {"POST"}),
        ("GET", "/conversations/1/jobs", {"POST"}),
        ("POST", "/computers", {"GET"}),
    ],
)
def test_a_wrong_method_says_which_are_right(
    client: Client, method: str, path: str, allowed: set[str]
) -> None:
    answer = client.generic(method, f"/api/v1{path}", "{}", content_type="application/json")
    assert refusal(answer) == (405, "method_not_allowed")
    assert set(answer.headers["Allow"].split(", ")) == allowed
