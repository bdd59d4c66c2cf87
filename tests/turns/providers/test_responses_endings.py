"""How a response ends: every terminal kind, every contradiction, every way to break off."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import WAIT_SECONDS, Simulator
from tests.simulators.replies import Framing, Reply, Step, close, hold, reset, send
from tests.simulators.responses_wire import Stream, event, frames_reply, message, response
from tests.turns.providers.hearing import CANARY, hear_once, require_private
from turns.providers.responses import ResponsesProvider
from turns.providers.types import Started, TextDelta

USAGE = {"input_tokens": 3, "output_tokens": 2}


def three_deltas(stream: Stream) -> list[bytes]:
    return [*stream.opening(), *stream.message("a", "b", "c")[:5]]


def ended(kind: str, **members: Any) -> bytes:
    return event(f"response.{kind}", response=response([message("abc")], **members))


async def test_what_was_reported_survives_a_stream_that_breaks_off(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Behaviour B1: response id, text and usage are kept."""
    snapshot = response(status="in_progress", usage=USAGE)
    delta = event("response.output_text.delta", delta="part")
    service.script(frames_reply(event("response.in_progress", response=snapshot), delta))
    heard = await hear_once(service, provider)
    assert heard.events == [Started("resp_1"), TextDelta("part")]
    assert heard.code == "truncated_stream"
    assert (heard.failed.response_id, heard.failed.usage) == ("resp_1", USAGE)


@pytest.mark.parametrize(
    ("steps", "framing"),
    [
        ((), "chunked"),
        ((), "close"),
        ((close(),), "chunked"),
        ((reset(),), "chunked"),
        ((send(b'event: response.completed\ndata: {"type":"resp'), close()), "chunked"),
        ((send(b'data: {"type":"response.completed","response":{}}\n'),), "chunked"),
        ((send(b"data: [DONE]\n\n"),), "chunked"),
        ((send(event("response.done", response=response())),), "chunked"),
    ],
    ids=[
        "clean end",
        "clean end of a body without length",
        "connection closed",
        "connection reset",
        "inside a frame",
        "terminal event without its blank line",
        "[DONE] instead of a terminal event",
        "an unknown terminal kind",
    ],
)
async def test_a_stream_without_its_terminal_event_is_never_a_success(
    service: Simulator,
    provider: ResponsesProvider,
    steps: tuple[Step, ...],
    framing: Framing,
) -> None:
    """Failures H32, H34, behaviour F4: the deltas stay, nothing is invented."""
    # a reset overtakes bytes that were sent, so they are read first
    frames = [send(*three_deltas(Stream())), hold("read")]
    service.script(Reply([*frames, *steps], framing=framing))

    def release(text: str) -> None:
        if text == "abc":
            service.release("read")

    heard = await hear_once(service, provider, on_text=release)
    assert heard.code == "truncated_stream"
    assert heard.deltas == ["a", "b", "c"]
    assert heard.failed.usage is None


async def test_silence_in_the_body_ends_the_response_and_keeps_its_text(
    service: Simulator, impatient: ResponsesProvider
) -> None:
    service.script(Reply([send(*three_deltas(Stream())), hold("never")]))
    heard = await hear_once(service, impatient)
    assert heard.code == "provider_timeout"
    assert heard.text == "abc"
    await asyncio.to_thread(service.wait_for_disconnects)


# terminal kinds


async def test_incomplete_is_said_and_its_text_is_kept(
    service: Simulator, provider: ResponsesProvider
) -> None:
    details = {"reason": "max_output_tokens"}
    stream = Stream()
    frames = stream.message("abc")
    terminal = stream.terminal("incomplete", incomplete_details=details)
    service.script(frames_reply(*frames, terminal))
    heard = await hear_once(service, provider)
    assert heard.completed.incomplete
    assert heard.completed.text == "abc"


async def test_cancelled_is_an_end_of_its_own(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Behaviours B2, F4."""
    usage = {"input_tokens": 3, "output_tokens": 0}
    terminal = event("response.cancelled", response=response(status="cancelled", usage=usage))
    service.script(frames_reply(*Stream().opening(), terminal))
    heard = await hear_once(service, provider)
    assert heard.cancelled.response_id == "resp_1"
    assert heard.cancelled.usage == usage


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"code": "server_error", "message": CANARY}, "provider_unavailable"),
        ({"code": "rate_limit_exceeded", "message": CANARY}, "provider_rate_limited"),
        ({"code": "invalid_prompt", "message": CANARY}, "provider_rejected"),
        ({"code": "context_length_exceeded", "message": CANARY}, "provider_context_exceeded"),
        ({"code": CANARY, "message": CANARY}, "provider_failed"),
        ({"message": CANARY, "type": "overloaded_error"}, "provider_unavailable"),
        (CANARY, "provider_failed"),
        (None, "provider_failed"),
    ],
)
async def test_failed_is_a_failure_with_our_code_and_the_usage_reported(
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    error: object,
    code: str,
) -> None:
    """Behaviour F5, failures H34, H42."""
    snapshot = response(status="failed", error=error, usage=USAGE)
    service.script(frames_reply(event("response.failed", response=snapshot)))
    heard = await hear_once(service, provider)
    assert heard.code == code
    assert heard.failed.usage == USAGE
    require_private(heard, capsys)


@pytest.mark.parametrize(
    ("kind", "status", "outcome"),
    [
        ("completed", "incomplete", "incomplete"),
        ("incomplete", "completed", "incomplete"),
        ("completed", "cancelled", "cancelled"),
        ("completed", "failed", "provider_failed"),
        ("incomplete", "failed", "provider_failed"),
        ("completed", "exploded", "provider_failed"),
        ("completed", None, "completed"),
    ],
)
async def test_of_the_event_and_its_status_the_worse_counts(
    service: Simulator,
    provider: ResponsesProvider,
    kind: str,
    status: str | None,
    outcome: str,
) -> None:
    snapshot = {**response([message("abc")]), "status": status}
    service.script(frames_reply(event(f"response.{kind}", response=snapshot)))
    heard = await hear_once(service, provider)
    match outcome:
        case "completed" | "incomplete":
            assert heard.completed.incomplete == (outcome == "incomplete")
        case "cancelled":
            assert heard.cancelled.response_id == "resp_1"
        case _:
            assert heard.code == outcome


@pytest.mark.parametrize(
    "output", [[], [message("")], [{"type": "reasoning", "id": "r", "summary": []}]]
)
async def test_an_answer_of_nothing_is_a_failure(
    service: Simulator, provider: ResponsesProvider, output: list[dict[str, Any]]
) -> None:
    service.script(frames_reply(event("response.completed", response=response(output))))
    assert (await hear_once(service, provider)).code == "empty_output"


# errors inside a stream that began with 200


@pytest.mark.parametrize(
    "frame",
    [
        event("error", code="server_error", message=CANARY, param=None),
        wire.sse("error", {"code": "server_error", "message": CANARY}),
        wire.sse("", {"type": "error", "error": {"type": "server_error", "message": CANARY}}),
        wire.sse("", {"error": {"code": 503, "message": CANARY}}),
        wire.sse("", {"error": {"code": 500, "message": CANARY, "type": "server_error"}}),
    ],
)
@pytest.mark.parametrize("deltas", [0, 2])
async def test_an_error_after_200_is_a_failure_and_the_deltas_stay(
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    frame: bytes,
    deltas: int,
) -> None:
    """Failure H33."""
    stream = Stream()
    text = stream.message("a", "b")[: 2 + deltas] if deltas else []
    service.script(frames_reply(*text, frame))
    heard = await hear_once(service, provider)
    assert heard.code == "provider_unavailable"
    assert heard.deltas == ["a", "b"][:deltas]
    require_private(heard, capsys)


# after the terminal event


async def test_a_body_held_open_after_the_end_is_left(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(Reply([send(ended("completed")), hold("never")]))
    # which is less than the idle limit of the adapter
    async with asyncio.timeout(WAIT_SECONDS):
        heard = await hear_once(service, provider)
    assert heard.completed.text == "abc"
    await asyncio.to_thread(service.wait_for_disconnects)


@pytest.mark.parametrize(
    "after", [(close(),), (reset(),), (send(b"data: {oh no\n\n"),), (send(b"data: \xff\n\n"),)]
)
async def test_damage_after_the_end_changes_nothing(
    service: Simulator, provider: ResponsesProvider, after: tuple[Step, ...]
) -> None:
    pause = hold("ended") if after == (reset(),) else send()
    service.script(Reply([send(ended("completed")), pause, *after]))
    service.release("ended")
    heard = await hear_once(service, provider)
    assert heard.completed.text == "abc"


async def test_a_done_marker_after_the_end_is_no_event(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(ended("completed"), b"data: [DONE]\n\n"))
    assert (await hear_once(service, provider)).completed.anomalies == 0


async def test_deltas_after_the_end_are_discarded_and_counted(
    service: Simulator, provider: ResponsesProvider
) -> None:
    late = event("response.output_text.delta", delta="late")
    service.script(Reply([send(ended("completed"), late), send(late)]))
    heard = await hear_once(service, provider)
    assert (heard.completed.text, heard.completed.anomalies) == ("abc", 2)
    assert "late" not in heard.text


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("again", "code"),
    [
        (ended("completed"), "terminal_event_repeated"),
        (ended("incomplete"), "terminal_event_repeated"),
        (ended("completed", response_id="resp_2"), "terminal_event_repeated"),
        (event("error", code="server_error", message=CANARY), "provider_unavailable"),
        (
            event("response.failed", response=response(error={"code": "server_error"})),
            "provider_unavailable",
        ),
    ],
)
async def test_a_second_terminal_event_is_a_failure(
    service: Simulator, provider: ResponsesProvider, again: bytes, code: str, together: bool
) -> None:
    """In the same write or in a later one: the rule does not depend on the network."""
    first = ended("completed", usage=USAGE)
    steps = [send(first, again)] if together else [send(first), send(again)]
    service.script(Reply(steps))
    heard = await hear_once(service, provider)
    assert heard.code == code
    assert (heard.failed.response_id, heard.failed.usage) == ("resp_1", USAGE)
    assert heard.text == ""


async def test_a_response_id_that_changes_is_a_failure(
    service: Simulator, provider: ResponsesProvider
) -> None:
    stream = Stream()
    frames = [*stream.opening(), *stream.message("a")]
    service.script(frames_reply(*frames, ended("completed", response_id="resp_2")))
    heard = await hear_once(service, provider)
    assert heard.code == "response_id_conflict"
    assert heard.failed.response_id == "resp_1"
    assert heard.text == "a"


async def test_the_rule_for_an_end_marker_without_a_verdict_is_always_the_same(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Failure H35: a response without status and a proper terminal event is completed, once."""
    for _ in range(2):
        snapshot = {**response([message("abc")]), "status": None}
        stream = Stream()
        frames = stream.message("abc")
        service.script(frames_reply(*frames, event("response.completed", response=snapshot)))
        heard = await hear_once(service, provider)
        assert heard.text == heard.completed.text == "abc"
