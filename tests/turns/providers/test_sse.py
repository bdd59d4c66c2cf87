"""The event decoder: framing, byte integrity, bounds (protocols: WHATWG event-stream)."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import ErrorCode, ProviderFailed
from turns.providers.sse import EventDecoder, ServerSentEvent

# one to four bytes, a family of seven code points, and separators that text methods split at
HARD_TEXT = "aé€😀 👨‍👩‍👧‍👦 \u2028\u2029\u0085\x0b\x0c end"


def outcome(
    *chunks: bytes, **bounds: int
) -> tuple[list[ServerSentEvent], ProviderFailed | None]:
    """Return the events decoded and the failure that ended them."""
    decoder = EventDecoder(**bounds)
    seen: list[ServerSentEvent] = []
    try:
        for chunk in chunks:
            for event in decoder.feed(chunk):
                seen.append(event)  # noqa: PERF402 - what came before the damage counts
    except ProviderFailed as failed:
        return seen, failed
    return seen, None


def decode(*chunks: bytes, **bounds: int) -> list[ServerSentEvent]:
    seen, failure = outcome(*chunks, **bounds)
    assert failure is None
    return seen


def data(*chunks: bytes, **bounds: int) -> list[str]:
    return [event.data for event in decode(*chunks, **bounds)]


def refusal(*chunks: bytes, **bounds: int) -> tuple[ErrorCode, str]:
    _, failure = outcome(*chunks, **bounds)
    assert failure is not None
    return failure.code, failure.reason


def test_an_event_has_a_name_and_data() -> None:
    assert decode(b"event: e\ndata: 1\n\n") == [ServerSentEvent("e", "1")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_end_with_lf_crlf_or_cr(end: bytes) -> None:
    stream = end.join([b"event: a", b"data: 1", b"", b"data: 2", b"", b""])
    assert decode(stream) == [ServerSentEvent("a", "1"), ServerSentEvent("", "2")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_text_is_the_same_wherever_the_network_cuts_it(end: bytes) -> None:
    """Failure H36: every split of every character, also inside CRLF."""
    payload = json.dumps({"delta": HARD_TEXT}, ensure_ascii=False).encode()
    stream = end.join([b": hi", b"event: e", b"data: " + payload, b"", b"data: 2", b"", b""])
    whole = decode(stream)
    assert json.loads(whole[0].data) == {"delta": HARD_TEXT}
    for cut in range(len(stream) + 1):
        assert decode(stream[:cut], stream[cut:]) == whole


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stream_in_small_pieces_is_the_same_stream(size: int) -> None:
    """Behaviour F2 (7-byte chunks); the matrix's 2-byte chunks."""
    payload = json.dumps({"delta": HARD_TEXT}, ensure_ascii=False).encode()
    stream = (b"event: e\r\ndata: " + payload + b"\r\n\r\n") * 3
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert decode(*pieces) == decode(stream)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=30))
def test_any_cut_of_any_bytes_decodes_alike(pieces: list[bytes]) -> None:
    seen, failure = outcome(*pieces)
    at_once, failure_at_once = outcome(b"".join(pieces))
    assert seen == at_once
    assert (failure is None) == (failure_at_once is None)


def test_one_leading_byte_order_mark_is_dropped() -> None:
    mark = b"\xef\xbb\xbf"
    assert data(mark + b"data: 1\n\n") == ["1"]
    assert data(mark[:1], mark[1:], b"data: 1\n\n") == ["1"]
    assert data(b"data: 1\n\n" + mark + b"data: 2\n\n") == ["1"]


def test_one_space_after_the_colon_is_optional() -> None:
    assert data(b"data:[DONE]\n\n", b"data:  x\n\n") == ["[DONE]", " x"]


def test_data_lines_are_joined() -> None:
    assert data(b'data: {"a":\ndata: 1}\n\n') == ['{"a":\n1}']


def test_comments_and_unknown_fields_say_nothing() -> None:
    assert data(b": ping\n\nretry: 3\nid: 7\nnonsense\n\ndata: 1\n\n") == ["1"]


def test_an_event_without_data_is_skipped_and_its_name_forgotten() -> None:
    assert decode(b"event: a\n\nevent: b\ndata:\n\ndata: 1\n\n") == [ServerSentEvent("", "1")]


def test_an_event_without_its_blank_line_never_happened() -> None:
    assert data(b"data: 1\n\ndata: 2\n") == ["1"]


@pytest.mark.parametrize("damage", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98"])
def test_bytes_that_are_not_utf8_end_the_stream_after_what_came_before(damage: bytes) -> None:
    seen, failure = outcome(b"data: 1\n\ndata: " + damage + b"\n\n")
    assert [event.data for event in seen] == ["1"]
    assert failure is not None
    assert failure.code == ErrorCode.PROVIDER_PROTOCOL
    assert failure.__context__ is None


@pytest.mark.parametrize("pieces", [1, 1000])
def test_a_line_is_refused_at_its_bound_without_waiting_for_its_end(pieces: int) -> None:
    line = b"data: " + b"x" * 94
    assert data(line + b"\n\n", line_max_bytes=100) == ["x" * 94]
    endless = [b"x" * (10_000 // pieces)] * pieces
    found = refusal(b"data: ", *endless, line_max_bytes=100)
    assert found == (ErrorCode.RESPONSE_TOO_LARGE, "line")


def test_a_whole_line_over_its_bound_is_refused() -> None:
    found = refusal(b"data: " + b"x" * 95 + b"\n\n", line_max_bytes=100)
    assert found == (ErrorCode.RESPONSE_TOO_LARGE, "line")


def test_an_event_is_refused_at_its_bound_however_many_lines_it_has() -> None:
    line = b"data: " + b"x" * 9 + b"\n"
    assert data(line * 10 + b"\n", event_max_bytes=99) == ["\n".join(["x" * 9] * 10)]
    found = refusal(line * 11 + b"\n", event_max_bytes=99)
    assert found == (ErrorCode.RESPONSE_TOO_LARGE, "event")


def test_a_flood_of_comments_ends_at_the_response_bound() -> None:
    found = refusal(*[b": ping\n"] * 1000, response_max_bytes=1000)
    assert found == (ErrorCode.RESPONSE_TOO_LARGE, "response")


def test_a_long_line_byte_by_byte_costs_linear_time() -> None:
    def seconds(size: int) -> float:
        decoder = EventDecoder(line_max_bytes=10**7)
        start = time.process_time()
        for _ in range(size):
            list(decoder.feed(b"x"))
        return time.process_time() - start

    # quadratic work would be 8 x 8 = 64 times as much
    assert seconds(160_000) < 24 * max(seconds(20_000), 0.005)
