"""How a chat completion ends or breaks off: never a success without reason and end."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.simulators import chat_wire as wire
from tests.simulators.chat_wire import DONE, chunk, data, ending, frames_reply, text
from tests.simulators.client import WAIT_SECONDS, Simulator
from tests.simulators.replies import Framing, Reply, Step, close, error_reply, hold, reset, send
from tests.turns.providers.hearing import CANARY, hear_once, require_private
from turns.providers.chat import ChatProvider

STOP = chunk(finish_reason="stop")


@pytest.mark.parametrize(
    ("frames", "framing"),
    [
        ([STOP, DONE], "chunked"),
        ([STOP], "chunked"),
        ([STOP], "close"),
        ([STOP, STOP, DONE], "chunked"),
        ([chunk({"content": ""}, finish_reason="stop", usage=wire.USAGE), STOP], "chunked"),
        ([chunk(finish_reason=""), STOP, DONE, DONE], "chunked"),
    ],
    ids=[
        "[DONE]",
        "clean end",
        "end of the connection",
        "twice",
        "with usage",
        "double [DONE]",
    ],
)
async def test_a_finish_reason_and_a_proper_end_complete_the_answer(
    service: Simulator, chat: ChatProvider, frames: list[bytes], framing: Framing
) -> None:
    service.script(Reply([send(text("abc"), *frames)], framing=framing))
    heard = await hear_once(service, chat)
    assert (heard.completed.text, heard.completed.anomalies) == ("abc", 0)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_cut_answer_is_incomplete_and_keeps_its_text(
    service: Simulator, chat: ChatProvider, reason: str
) -> None:
    """Failure H34."""
    service.script(frames_reply(text("abc"), *ending(reason)))
    heard = await hear_once(service, chat)
    assert heard.completed.incomplete
    assert heard.completed.text == "abc"


@pytest.mark.parametrize("reason", ["error", "who_knows", 7, ["stop"]])
async def test_an_unknown_finish_reason_is_a_failure(
    service: Simulator, chat: ChatProvider, reason: object
) -> None:
    """Failure H34."""
    frames = [text("abc"), chunk(finish_reason=reason), DONE]
    service.script(frames_reply(*frames))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.text) == ("provider_failed", "abc")


@pytest.mark.parametrize(
    "steps",
    [
        [send(DONE)],
        [],
        [close()],
        [reset()],
        [send(STOP), close()],
        [send(b'data: {"id":"chatcmpl-1","choi'), close()],
        [send(STOP[:-1])],
    ],
    ids=[
        "[DONE] without a reason",
        "clean end without a reason",
        "closed",
        "reset",
        "closed after the reason",
        "inside a frame",
        "reason without its blank line",
    ],
)
async def test_an_answer_that_broke_off_is_never_a_success(
    service: Simulator, chat: ChatProvider, steps: list[Step]
) -> None:
    """Failures H32, H35: a null finish reason with a proper end marker is a cut, always."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    frames = [send(text("a"), text("b"), text("c", usage=usage)), hold("read")]
    service.script(Reply([*frames, *steps]))

    def release(heard: str) -> None:
        if heard == "abc":
            service.release("read")

    heard = await hear_once(service, chat, on_text=release)
    assert (heard.code, heard.text) == ("truncated_stream", "abc")
    assert heard.failed.response_id == "chatcmpl-1"
    assert heard.failed.usage == {"input_tokens": 3, "output_tokens": 2}


async def test_silence_after_the_reason_is_a_failure(
    service: Simulator, impatient_chat: ChatProvider
) -> None:
    service.script(Reply([send(text("abc"), STOP), hold("never")]))
    assert (await hear_once(service, impatient_chat)).code == "provider_timeout"
    await asyncio.to_thread(service.wait_for_disconnects)


async def test_a_body_held_open_after_the_end_marker_is_left(
    service: Simulator, chat: ChatProvider
) -> None:
    service.script(Reply([send(text("abc"), STOP, DONE), hold("never")]))
    # which is less than the idle limit of the adapter
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await hear_once(service, chat)).completed.text == "abc"
    await asyncio.to_thread(service.wait_for_disconnects)


async def test_an_answer_of_nothing_is_a_failure(
    service: Simulator, chat: ChatProvider
) -> None:
    service.script(frames_reply(wire.OPENING, *ending()))
    assert (await hear_once(service, chat)).code == "empty_output"


# contradictions


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("after", "code"),
    [
        ([chunk(finish_reason="length")], "terminal_event_repeated"),
        ([DONE, STOP], "terminal_event_repeated"),
        (
            [DONE, data({"error": {"code": "server_error", "message": CANARY}})],
            "provider_unavailable",
        ),
    ],
)
async def test_two_verdicts_are_a_failure(
    service: Simulator, chat: ChatProvider, after: list[bytes], code: str, together: bool
) -> None:
    frames = [text("abc"), STOP, *after]
    steps = [send(*frames)] if together else [send(frame) for frame in frames]
    service.script(Reply(steps))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.text) == (code, "abc")


@pytest.mark.parametrize("marker", [b"", DONE])
async def test_text_after_the_end_is_discarded_and_counted(
    service: Simulator, chat: ChatProvider, marker: bytes
) -> None:
    service.script(frames_reply(text("abc"), STOP, send(marker), text("late")))
    heard = await hear_once(service, chat)
    assert (heard.text, heard.completed.anomalies) == ("abc", 1)


async def test_a_response_id_that_changes_is_a_failure(
    service: Simulator, chat: ChatProvider
) -> None:
    service.script(frames_reply(text("a"), text("b", response_id="chatcmpl-2"), *ending()))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.text) == ("response_id_conflict", "a")


# errors and damage


@pytest.mark.parametrize(
    "frame",
    [
        data({"error": {"code": 503, "message": CANARY}}),
        data({"error": {"type": "server_error", "message": CANARY}}),
        data({"id": "chatcmpl-1", "choices": [], "error": {"code": 502, "message": CANARY}}),
        b"event: error\n" + data({"code": "server_error", "message": CANARY}),
    ],
)
async def test_an_error_after_200_is_a_failure_and_the_text_stays(
    service: Simulator, chat: ChatProvider, capsys: pytest.CaptureFixture[str], frame: bytes
) -> None:
    """Failure H33."""
    service.script(frames_reply(text("abc"), frame, *ending()))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.text) == ("provider_unavailable", "abc")
    require_private(heard, capsys)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"data: {oh no\n\n", "frame: json"),
        (data([CANARY]), "frame: object"),
        (data({"choices": {"a": CANARY}}), "choices: list_type"),
        (data({"choices": [CANARY]}), "choices: list_type"),
        (chunk({"content": 7}), "content: string_type"),
        (chunk({"content": {"text": CANARY}}), "content: string_type"),
        (chunk({"content": [CANARY]}), ": model_type"),
        (chunk({"refusal": 7}), "refusal: string_type"),
        (text("x", response_id="i" * 513), "id: too_long"),
        (b"data: \xff\n\n", "utf8"),
    ],
)
async def test_a_malformed_chunk_fails_the_response_and_names_field_and_rule(
    service: Simulator,
    chat: ChatProvider,
    capsys: pytest.CaptureFixture[str],
    frame: bytes,
    reason: str,
) -> None:
    """Failure H44."""
    service.script(frames_reply(text("before", response_id=None), frame, *ending()))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.failed.reason) == ("provider_protocol", reason)
    assert heard.text == "before"
    require_private(heard, capsys)


async def test_signs_of_life_sent_as_data_say_nothing(
    service: Simulator, chat: ChatProvider
) -> None:
    alive = [b": OPENROUTER PROCESSING\n\n", b"data: : OPENROUTER PROCESSING\n\n"]
    service.script(frames_reply(*alive, b"data: null\n\n", text("abc"), *ending()))
    assert (await hear_once(service, chat)).completed.text == "abc"


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "provider_rejected"), (401, "provider_auth"), (429, "provider_rate_limited"),
     (500, "provider_unavailable")],
)  # fmt: skip
async def test_an_error_status_is_one_post_and_one_code(
    service: Simulator, chat: ChatProvider, status: int, code: str
) -> None:
    """Behaviour F8."""
    service.script(error_reply(status, message=CANARY))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.failed.http_status) == (code, status)


async def test_a_large_answer_arrives_whole(service: Simulator, chat: ChatProvider) -> None:
    words = [f"word {number} " for number in range(5_000)]
    service.script(wire.answer(*words))
    heard = await hear_once(service, chat)
    assert heard.text == heard.completed.text == "".join(words)
    assert json.dumps(heard.completed.usage)
