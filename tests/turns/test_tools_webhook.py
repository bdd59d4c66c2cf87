"""`webhook_post`: to allowed addresses only, once, and honest about what is not known."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from recovery.executor import in_thread
from tests.factories import UserFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, close, json_reply, send
from turns.tools import webhook_post
from turns.tools.registry import Invocation
from turns.tools.runner import Outcome, invoke

pytestmark = pytest.mark.django_db(transaction=True)


async def person(*allowed: str) -> int:
    """Return a person who allows these addresses."""

    def create() -> int:
        user = UserFactory.create()
        for url in allowed:
            WebhookAddressFactory.create(owner=user, url=url)
        return int(user.pk)

    return await in_thread(create)


async def post(
    owner_id: int, url: str, body: str = '{"n": 1}', key: UUID | None = None
) -> Outcome:
    arguments = webhook_post.TOOL.parse(json.dumps({"url": url, "body": body}))
    invocation: Invocation[Any] = Invocation(owner_id, 1, 1, key or uuid4(), arguments)
    return await invoke(webhook_post.TOOL, invocation)


async def test_the_receiver_gets_the_body_once_under_the_key_of_the_call(
    sink: Simulator,
) -> None:
    url, key = f"{sink.url}/in?x=1", uuid4()
    outcome = await post(await person(url), url, '{"a": [1, 2]}', key)
    assert outcome.state == "succeeded"
    assert json.loads(outcome.result) == {"status": 200, "answer": '{"ok": true}'}
    (request,) = sink.requests()
    assert (request.method, request.path, request.json) == ("POST", "/in?x=1", {"a": [1, 2]})
    assert request.headers["idempotency-key"] == str(key)
    assert request.headers["content-type"] == "application/json"
    assert "cookie" not in request.headers
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url + "/",
        lambda url: url + "?x=1",
        lambda url: url + "#part",
        lambda url: url.replace("127.0.0.1", "localhost"),
        lambda url: url.replace("http://", "http://user@"),
        lambda url: url.replace("/in", "/in/../in"),
        lambda url: url.upper(),
        lambda url: " " + url,
        lambda _: "file:///etc/passwd",
        lambda _: "http://169.254.169.254/latest/meta-data",
        lambda _: "gopher://127.0.0.1:6379/_FLUSHALL",
        lambda _: "http://[::1",
    ],
)
async def test_an_address_that_is_not_exactly_an_allowed_one_is_refused(
    sink: Simulator, change: Any
) -> None:
    url = f"{sink.url}/in"
    outcome = await post(await person(url), change(url))
    assert (outcome.state, outcome.error_code) == ("refused", "address_not_allowed")
    assert sink.posts == 0


async def test_an_address_somebody_else_allows_is_refused(sink: Simulator) -> None:
    url = f"{sink.url}/in"
    await person(url)
    outcome = await post(await person(), url)
    assert (outcome.state, outcome.error_code) == ("refused", "address_not_allowed")
    assert sink.posts == 0


async def test_an_address_that_is_no_web_address_is_refused_even_when_listed() -> None:
    outcome = await post(await person("file:///etc/passwd"), "file:///etc/passwd")
    assert outcome.state == "refused"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(sink: Simulator, status: int) -> None:
    url = f"{sink.url}/in"
    sink.script(
        Reply(
            (), status=status, headers={"Location": f"{sink.url}/elsewhere"}, framing="length"
        )
    )
    outcome = await post(await person(url), url)
    assert (outcome.state, outcome.error_code) == ("failed", "tool_failed")
    assert json.loads(outcome.result)["status"] == status
    assert [request.path for request in sink.requests()] == ["/in"]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_refusal_of_the_receiver_is_told_and_not_tried_again(
    sink: Simulator, status: int
) -> None:
    url = f"{sink.url}/in"
    sink.script(json_reply({"error": "no"}, status=status))
    outcome = await post(await person(url), url)
    assert (outcome.state, outcome.error_code) == ("failed", "tool_failed")
    assert json.loads(outcome.result) == {"status": status, "answer": '{"error": "no"}'}
    assert sink.posts == 1


async def test_a_connection_lost_before_the_answer_is_an_unknown_outcome(
    sink: Simulator,
) -> None:
    url = f"{sink.url}/in"
    sink.script(Reply((close(),), framing="raw"))
    outcome = await post(await person(url), url)
    assert (outcome.state, outcome.error_code) == ("interrupted", "outcome_unknown")
    assert "not known" in outcome.result
    assert sink.posts == 1


async def test_a_receiver_that_cannot_be_reached_certainly_got_nothing() -> None:
    url = "http://127.0.0.1:9/in"
    outcome = await post(await person(url), url)
    assert (outcome.state, outcome.error_code) == ("failed", "tool_failed")
    assert "nothing was sent" in outcome.result


async def test_a_long_answer_is_read_to_its_bound(sink: Simulator) -> None:
    url = f"{sink.url}/in"
    sink.script(Reply((send(b"x" * 1_000_000),), headers={}, framing="chunked"))
    outcome = await post(await person(url), url)
    assert outcome.state == "succeeded"
    assert len(json.loads(outcome.result)["answer"]) == webhook_post.ANSWER_MAX_BYTES


@pytest.mark.parametrize("body", ["", "{", "text", "NaN", '"' + "é" * 9_000 + '"'])
async def test_a_body_that_is_not_bounded_json_is_refused_before_anything_is_sent(
    sink: Simulator, body: str
) -> None:
    url = f"{sink.url}/in"
    outcome = await post(await person(url), url, body)
    assert (outcome.state, outcome.error_code) == ("failed", "invalid_tool_arguments")
    assert sink.posts == 0
