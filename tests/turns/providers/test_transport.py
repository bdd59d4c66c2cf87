"""Failures of the request and the connection: one POST each, our code, nothing private."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import ROOT, WAIT_SECONDS, Simulator, in_thread
from tests.simulators.replies import (
    Reply,
    close,
    drip,
    error_reply,
    hold,
    json_reply,
    packed,
    raw,
    reset,
    send,
)
from tests.turns.providers.hearing import (
    ASK,
    CANARY,
    IMPATIENT_SECONDS,
    PATIENT_SECONDS,
    hear,
    hear_once,
    require_private,
)
from turns.providers.responses import ResponsesProvider

CERTIFICATE: Final = str(ROOT / "tests/simulators/loopback.pem")


@asynccontextmanager
async def adapter(base_url: str, **options: Any) -> AsyncIterator[ResponsesProvider]:
    patient = {"connect_seconds": PATIENT_SECONDS, "idle_seconds": PATIENT_SECONDS}
    provider = ResponsesProvider(base_url=base_url, **{**patient, **options})
    try:
        yield provider
    finally:
        await provider.aclose()


# status codes


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"type": "invalid_request_error"}, "provider_rejected"),
        (400, {"code": "context_length_exceeded"}, "provider_context_exceeded"),
        (400, {"code": 400, "type": "exceed_context_size_error"}, "provider_context_exceeded"),
        (400, {"code": "model_not_found"}, "provider_not_found"),
        (401, {"type": "authentication_error", "code": 401}, "provider_auth"),
        (402, {}, "provider_quota"),
        (403, {"code": "unsupported_country_region_territory"}, "provider_forbidden"),
        (404, {"type": "not_found_error"}, "provider_not_found"),
        (408, {}, "provider_unavailable"),
        (409, {}, "provider_unavailable"),
        (413, {}, "provider_rejected"),
        (418, {}, "provider_rejected"),
        (422, {}, "provider_rejected"),
        (429, {"type": "rate_limit_error"}, "provider_rate_limited"),
        (429, {"code": "insufficient_quota"}, "provider_quota"),
        (429, {"code": None, "type": "insufficient_quota"}, "provider_quota"),
        (
            429,
            {"code": "rate_limit_exceeded", "type": "insufficient_quota"},
            "provider_rate_limited",
        ),
        (500, {"type": "server_error"}, "provider_unavailable"),
        (502, {}, "provider_unavailable"),
        (503, {"code": "invalid_api_key"}, "provider_unavailable"),
        (529, {"type": "overloaded_error"}, "provider_unavailable"),
        (202, {}, "provider_protocol"),
    ],
)
async def test_an_error_status_is_one_post_and_one_code(  # noqa: PLR0917 - pytest names them
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    status: int,
    error: dict[str, object],
    code: str,
) -> None:
    """Behaviour F8, failures H31, H43."""
    service.script(json_reply({"error": {"message": CANARY, **error}}, status=status))
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.http_status) == (code, status)
    assert heard.events == []
    require_private(heard, capsys)


@pytest.mark.parametrize(
    "reply",
    [
        Reply((), status=500, headers={}, framing="close"),
        Reply((), status=500, headers={}, framing="length"),
        json_reply({"detail": [{"msg": CANARY}]}, status=500),
        json_reply([CANARY], status=500),
        Reply([send(CANARY.encode())], status=500, headers={"Content-Type": "text/html"}),
        Reply([send(b"\xff\xfe")], status=500, headers={}),
        packed(error_reply(500, message=CANARY)),
        Reply([send(b"x" * 70_000), hold("never")], status=500),
        Reply([send(b"{"), close()], status=500),
    ],
    ids=[
        "empty", "empty with a length", "detail", "array", "html", "not text", "packed",
        "huge", "broken",
    ],
)  # fmt: skip
async def test_any_body_of_an_error_leaves_the_status_to_decide(
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
) -> None:
    """Failure H31."""
    service.script(reply)
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.http_status) == ("provider_unavailable", 500)
    require_private(heard, capsys)


async def test_an_error_whose_body_does_not_end_is_known_by_its_status(
    service: Simulator, impatient: ResponsesProvider, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failure H31."""
    service.script(Reply([send(b"{"), hold("never")], status=500))
    heard = await hear_once(service, impatient)
    assert (heard.code, heard.failed.http_status) == ("provider_unavailable", 500)
    require_private(heard, capsys)


async def test_a_redirect_is_not_followed(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """It would carry the credentials to wherever it points."""
    for status in (301, 302, 303, 307, 308):
        headers = {"Location": f"{service.url}/elsewhere"}
        service.script(Reply((), status=status, headers=headers, framing="length"))
        heard = await hear_once(service, provider)
        assert (heard.code, heard.failed.http_status) == ("provider_protocol", status)
    assert {request.path for request in service.requests()} == {"/v1/responses"}


# 200 without an event stream


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (json_reply({"id": "resp_1", "output": []}), "provider_protocol"),
        (error_reply(200, code="invalid_api_key", message=CANARY), "provider_auth"),
        (error_reply(200, message=CANARY), "provider_failed"),
        (
            Reply([send(b"<html>hello")], headers={"Content-Type": "text/html"}),
            "provider_protocol",
        ),
        (Reply([send(b"data: 1\n\n")], headers={}), "provider_protocol"),
        (Reply((), headers={}, framing="length"), "provider_protocol"),
        (Reply(()), "truncated_stream"),
        (Reply((), framing="length"), "truncated_stream"),
        (packed(wire.answer("Hi")), "provider_protocol"),
    ],
    ids=[
        "json", "json error", "json error without code", "html", "no type", "nothing",
        "empty stream", "empty stream with a length", "packed",
    ],
)  # fmt: skip
async def test_200_without_a_plain_event_stream_is_a_failure(
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    code: str,
) -> None:
    service.script(reply)
    heard = await hear_once(service, provider)
    assert heard.code == code
    require_private(heard, capsys)


async def test_the_content_type_may_have_parameters(
    service: Simulator, provider: ResponsesProvider
) -> None:
    headers = {"Content-Type": "Text/Event-Stream; charset=utf-8"}
    service.script(wire.answer("Hi", headers=headers))
    assert (await hear_once(service, provider)).text == "Hi"


# the connection


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_a_refused_connection_is_unreachable() -> None:
    with closed_port() as port:
        async with adapter(f"http://127.0.0.1:{port}/v1") as provider:
            heard = await hear(provider)
    assert (heard.code, heard.failed.reason) == ("provider_unreachable", "connect")
    assert heard.failed.__context__ is None


@pytest.mark.parametrize(
    "address", ["http://", "nonsense", "ftp://127.0.0.1/v1", "http://a b/"]
)
async def test_an_address_that_is_none_is_unreachable(address: str) -> None:
    async with adapter(address) as provider:
        assert (await hear(provider)).code == "provider_unreachable"


async def test_a_connection_nobody_accepts_is_unreachable_in_time() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", port))
            async with adapter(f"http://127.0.0.1:{port}/v1", connect_seconds=0.3) as provider:
                heard = await hear(provider)
        finally:
            for client in waiting:
                client.close()
    assert (heard.code, heard.failed.reason) == ("provider_unreachable", "connect")


async def test_tls_with_a_server_that_has_none_is_unreachable(service: Simulator) -> None:
    """Failure H19."""
    address = service.base_url.replace("http:", "https:")
    # it waits for more of what it takes for a request, until the limit
    async with adapter(address, connect_seconds=0.5) as provider:
        heard = await hear(provider)
    assert heard.code == "provider_unreachable"
    assert service.posts == 0


async def test_a_certificate_nobody_vouches_for_is_refused() -> None:
    """Failure H19: a TLS error is before the request, so nothing was sent."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE)
    with in_thread(wire.answer("Hi"), tls=tls) as service:
        async with adapter(service.base_url) as provider:
            heard = await hear(provider)
        assert (heard.code, heard.failed.reason) == ("provider_unreachable", "tls")
        assert service.posts == 0
        trusting = ssl.create_default_context(cafile=CERTIFICATE)
        async with adapter(service.base_url, verify=trusting) as provider:
            assert (await hear_once(service, provider)).text == "Hi"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply([close()], framing="raw"), "provider_unavailable"),
        (Reply([reset()], framing="raw"), "provider_unavailable"),
        (Reply([raw(b"HTTP/1.1 200 OK\r\nContent-Ty"), close()], framing="raw"), None),
        (Reply([raw(b"SSH-2.0-OpenSSH\r\n\r\n"), close()], framing="raw"), "provider_protocol"),
        (Reply([raw(b"\x00\x01\x02\r\n\r\n"), close()], framing="raw"), "provider_protocol"),
        (Reply([raw(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000)], framing="raw"), None),
        (error_reply(502), "provider_unavailable"),
    ],
    ids=[
        "closed", "reset", "half a head", "not HTTP", "binary", "huge head", "502",
    ],
)  # fmt: skip
async def test_no_failure_after_the_body_was_sent_leads_to_a_second_post(
    service: Simulator,
    provider: ResponsesProvider,
    reply: Reply,
    code: str | None,
) -> None:
    """Failures H17, H19; behaviour F8."""
    service.script(reply)
    heard = await hear_once(service, provider)
    assert heard.code == (code or heard.code)
    assert heard.code in {"provider_unavailable", "provider_protocol"}
    # a later request is not disturbed by the broken connection
    service.script(wire.answer("Hi"))
    assert (await hear_once(service, provider)).text == "Hi"


async def test_no_answer_at_all_does_not_lead_to_a_second_post_either(
    service: Simulator, impatient: ResponsesProvider
) -> None:
    """Failures H17, H19; behaviour F8."""
    service.script(Reply((), hold_head="never"))
    assert (await hear_once(service, impatient)).code == "provider_timeout"
    service.script(wire.answer("Hi"))
    assert (await hear_once(service, impatient)).text == "Hi"


async def test_a_malformed_chunk_fails_the_response(
    service: Simulator, provider: ResponsesProvider
) -> None:
    delta = wire.event("response.output_text.delta", delta="a")
    """aiohttp alone waits for ever when the malformed chunk comes after the head."""
    later = [send(delta), hold("read"), raw(b"oh no\r\n\r\n"), hold("never")]
    service.script(
        Reply([send(delta), raw(b"oh no\r\n\r\n"), hold("never")]),
        Reply(later),
    )
    heard = await hear_once(service, provider)
    assert heard.code in {"provider_protocol", "truncated_stream"}
    # noticed when it comes, not by the idle limit, which is longer than this waits
    async with asyncio.timeout(WAIT_SECONDS):
        heard = await hear_once(service, provider, on_text=lambda _: service.release("read"))
    assert (heard.code, heard.text) == ("truncated_stream", "a")


async def test_a_slow_drip_is_alive_and_the_callers_clock_ends_it(
    service: Simulator, impatient: ResponsesProvider
) -> None:
    """A byte at a time, comments or not, keeps the idle limit away but not the deadline."""
    service.script(Reply([drip(b": ping\n" * 1_000, seconds=0.02)]))
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * IMPATIENT_SECONDS):
            await hear(impatient)
    assert time.monotonic() - start >= 2 * IMPATIENT_SECONDS
    assert service.posts == 1
    await asyncio.to_thread(service.wait_for_disconnects)


# leaving


async def test_leaving_the_generator_closes_the_connection(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(wire.stalled("a", "b"))
    async with aclosing(provider.respond(ASK)) as events:
        async for _ in events:
            break
    await asyncio.to_thread(service.wait_for_disconnects)


async def test_cancelling_the_task_closes_the_connection(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(wire.stalled("a", "b"))
    task = asyncio.ensure_future(hear(provider))
    await asyncio.to_thread(service.wait_for_gate, "answer")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(service.wait_for_disconnects)
    assert service.posts == 1


async def test_hundreds_of_streams_run_side_by_side(service: Simulator) -> None:
    """An unset limit would let 100 through and starve the rest."""
    streams = 300
    service.script(wire.stalled("a", "b", repeat=True))
    async with adapter(service.base_url) as provider:
        async with asyncio.TaskGroup() as group:
            heard = [group.create_task(hear(provider)) for _ in range(streams)]
            await asyncio.to_thread(service.wait_for_gate, "answer", streams)
            service.release("answer")
        assert {task.result().text for task in heard} == {"ab"}
    assert service.posts == streams


async def test_more_requests_than_connections_wait_their_turn(service: Simulator) -> None:
    service.script(wire.answer("a", repeat=True))
    async with adapter(service.base_url, max_connections=2) as provider:
        heard = await asyncio.gather(*(hear(provider) for _ in range(20)))
    assert {one.text for one in heard} == {"a"}
