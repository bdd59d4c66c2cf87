"""Malformed events (protocols/responses, section 9): no success, no crash, nothing private."""

from __future__ import annotations

import json

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, drip, send
from tests.simulators.responses_wire import Stream, event, frames_reply, message, response
from tests.turns.providers.hearing import CANARY, hear_once, require_private
from turns.providers.responses import ResponsesProvider

COMPLETED = event("response.completed", response=response([message("abc")]))


def line(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def delta(text: str, **members: object) -> bytes:
    return event("response.output_text.delta", delta=text, **members)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (line('{"type":"response.output_text.delta","delta":"x'), "frame: json"),
        (line("<html>" + CANARY), "frame: json"),
        (line(f'["{CANARY}"]'), "frame: object"),
        (line("7"), "frame: object"),
        (line(f'"{CANARY}"'), "frame: object"),
        (line('{"type":"x","a":NaN}'), "frame: constant"),
        (line('{"type":"x","a":-Infinity}'), "frame: constant"),
        (line('{"type":"x","a":1e400}'), "frame: range"),
        (line('{"type":"x","a":' + "9" * 5_000 + "}"), "frame: json"),
        (line("[" * 100_000), "frame: depth"),
        (line('{"a":' * 40_000 + "1" + "}" * 40_000), "frame: depth"),
        (line('{"type":"x","a":"\x01"}'), "frame: json"),
        (line(json.dumps({"type": "response.output_text.delta"})), "delta: string_type"),
        (delta("x").replace(b'"x"', b"7"), "delta: string_type"),
        (delta("x").replace(b'"x"', b'{"text":"x"}'), "delta: string_type"),
        (event("response.output_text.done", text=[CANARY]), "text: string_type"),
        (event("response.created", response={"id": 7}), "id: string_type"),
        (event("response.created", response={"id": "x" * 513}), "id: too_long"),
        (event("response.completed", response=None), ": model_type"),
        (event("response.completed"), ": model_type"),
        (event("response.completed", response={"output": {"a": CANARY}}), "output: list_type"),
        (event("response.completed", response={"output": [CANARY]}), "output.0: dict_type"),
        (
            event("response.completed", response=response([message("x", content=[CANARY])])),
            "content.0: model_type",
        ),
        (
            event("response.completed", response=response([message("x", content=[{}])])),
            "content.0.type: missing",
        ),
        (
            event(
                "response.output_item.done", item=wire.call("x" * 129, json.dumps(CANARY))
            ),
            "name: too_long",
        ),
        (
            event("response.output_item.done", item={**wire.call("x", ""), "arguments": 7}),
            "arguments: string_type",
        ),
    ],
)  # fmt: skip
async def test_a_malformed_event_fails_the_response_and_names_field_and_rule(
    service: Simulator,
    provider: ResponsesProvider,
    capsys: pytest.CaptureFixture[str],
    frame: bytes,
    reason: str,
) -> None:
    """Failure H44: the field's path and the rule, never the value."""
    service.script(frames_reply(delta("before"), frame, COMPLETED))
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.reason) == ("provider_protocol", reason)
    assert heard.text == "before"
    require_private(heard, capsys)


async def test_bytes_that_are_not_utf8_fail_the_response(
    service: Simulator, provider: ResponsesProvider
) -> None:
    damaged = delta("é").replace("é".encode(), b"\xe9")
    service.script(frames_reply(delta("before"), damaged, COMPLETED))
    heard = await hear_once(service, provider)
    assert (heard.code, heard.text) == ("provider_protocol", "before")


# numbers


def numbered(number: object, text: str) -> bytes:
    return delta(text, sequence_number=number)


@pytest.mark.parametrize(
    ("numbers", "text", "anomalies"),
    [
        ([(0, "a"), (1, "b"), (2, "c")], "abc", 0),
        ([(7, "a"), (8, "b"), (9, "c")], "abc", 0),
        ([(0, "a"), (1, "b"), (1, "b"), (2, "c")], "abc", 0),
        ([(0, "a"), (1, "b"), (0, "a"), (1, "b"), (2, "c")], "abc", 0),
        ([(0, "a"), (5, "b"), (9, "c")], "abc", 0),
        ([(0, "a"), (2, "b"), (1, "c")], "abc", 1),
        ([(5, "a"), (4, "b"), (6, "c")], "abc", 1),
        ([(0, "a"), (0, "b"), (0, "b"), (0, "c")], "abbc", 0),
        ([(0, "a"), (1, "b"), (1, "c")], "abc", 1),
        ([(0, "a"), (None, "b"), (0, "b"), (0, "c")], "abbc", 0),
        ([("0", "a"), ("0", "a"), (1.5, "b"), (True, "c")], "aabc", 0),
    ],
    ids=[
        "in order",
        "another base",
        "repeated",
        "replayed",
        "gaps",
        "late",
        "before the first",
        "constant",
        "two under one number",
        "absent",
        "not numbers",
    ],
)
async def test_sequence_numbers_drop_exact_repeats_and_nothing_else(
    service: Simulator,
    provider: ResponsesProvider,
    numbers: list[tuple[object, str]],
    text: str,
    anomalies: int,
) -> None:
    frames = [numbered(number, piece) for number, piece in numbers]
    service.script(frames_reply(*frames, event("response.completed", response=response())))
    heard = await hear_once(service, provider)
    assert (heard.text, heard.completed.anomalies) == (text, anomalies)


async def test_a_replay_longer_than_the_memory_is_still_dropped(
    service: Simulator, provider: ResponsesProvider
) -> None:
    frames = [numbered(number, f"{number} ") for number in range(200)]
    service.script(
        frames_reply(*frames, *frames, event("response.completed", response=response()))
    )
    heard = await hear_once(service, provider)
    assert heard.text == "".join(f"{number} " for number in range(200))
    assert heard.completed.anomalies > 0


# characters


async def test_a_character_written_as_two_escapes_may_be_cut_between_deltas(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Failure H37: pairs are joined, a lone half becomes U+FFFD, NUL as well (H38)."""
    pieces = ["a\ud83d", "\ude00b", "\ud83d", "c", "\ude00", "d\x00", "e\ud83d"]
    frames = [
        wire.sse("", {"type": "response.output_text.delta", "delta": "@"}).replace(
            b'"@"', json.dumps(piece).encode()
        )
        for piece in pieces
    ]
    service.script(frames_reply(*frames, event("response.completed", response=response())))
    heard = await hear_once(service, provider)
    assert heard.text == heard.completed.text == "a😀b\ufffdc\ufffdd\ufffde\ufffd"
    assert heard.completed.anomalies == 0
    assert heard.text.encode().decode() == heard.text


async def test_the_terminal_event_completes_a_half_character(
    service: Simulator, provider: ResponsesProvider
) -> None:
    half = delta("a@").replace(b"@", b"\\ud83d")
    service.script(
        frames_reply(half, event("response.completed", response=response([message("a😀")])))
    )
    heard = await hear_once(service, provider)
    assert heard.deltas == ["a", "😀"]
    assert heard.completed.anomalies == 0


async def test_names_ids_and_arguments_are_storable(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Failure H38."""
    item = wire.call("na\x00me", '{"a":"\x00"}', call_id="call\x00", item_id="fc\ud800")
    snapshot = response([item], response_id="resp\x00")
    frame = event("response.completed", response=snapshot)
    # as escapes, which is how a service must write them
    frame = frame.replace(b"\xed\xa0\x80", b"\\ud800")
    service.script(frames_reply(frame))
    heard = await hear_once(service, provider)
    (call,) = heard.completed.calls
    assert (heard.completed.response_id, call.call_id) == ("resp\ufffd", "call\ufffd")
    assert (call.item_id, call.name) == ("fc\ufffd", "na\ufffdme")
    assert call.arguments == '{"a":"\ufffd"}'


async def test_every_cut_of_hard_text_is_heard_the_same(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Failure H36 over a real connection, a byte at a time."""
    text = "é€😀👨‍👩‍👧‍👦\u2028\u0085\x0b"
    stream = Stream()
    frames = [*stream.message(text, text), stream.terminal()]
    service.script(Reply([drip(b"".join(frames), size=1)]))
    heard = await hear_once(service, provider)
    assert heard.deltas == [text, text]
    assert (heard.completed.text, heard.completed.anomalies) == (text * 2, 0)


# sizes


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([send(b"data: " + b"x" * 10_000_000)], "line"),
        ([send(b"data: " + b"x" * 200_000 + b"\n") for _ in range(2)], "event"),
        ([send(b": ping\n" * 10_000)] * 150, "response"),
        ([send(delta("x" * 200_000))] * 50, "response"),
    ],
    ids=["a line of 10 MB", "an event of many lines", "comments", "deltas"],
)
async def test_a_size_bound_ends_the_response_and_the_connection(
    service: Simulator, provider: ResponsesProvider, steps: list[object], reason: str
) -> None:
    """Failure H40: the connection is closed, so the service stops sending."""
    service.script(frames_reply(*steps, COMPLETED))  # type: ignore[arg-type]
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.reason) == ("response_too_large", reason)
