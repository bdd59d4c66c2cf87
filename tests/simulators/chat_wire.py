"""Chunks of chat/completions as OpenAI writes them, and whole replies made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.simulators.replies import Reply, Step, hold, send

RESPONSE_ID: Final = "chatcmpl-1"
USAGE: Final = {
    "prompt_tokens": 9,
    "completion_tokens": 5,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
DONE: Final = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    """Return one event with any JSON."""
    text = json.dumps(value, ensure_ascii=False)
    return f"data: {text}\n\n".encode("utf-8", "surrogatepass")


def chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    finish_reason: object = None,
    response_id: str | None = RESPONSE_ID,
    choices: Sequence[Any] | None = None,
    **members: Any,
) -> bytes:
    """Return one chunk; `choices` replaces the one choice made of `delta`."""
    if choices is None:
        choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish_reason}]
    frame = {
        "id": response_id,
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": list(choices),
        **members,
    }
    return data(frame)


def text(piece: str, **members: Any) -> bytes:
    """Return a chunk of text."""
    return chunk({"content": piece}, **members)


def fragment(
    index: int | None = 0,
    *,
    call_id: str | None = None,
    name: str | None = None,
    arguments: str | None = None,
) -> bytes:
    """Return a chunk with a piece of a call; what is None is left out."""
    function = {"name": name, "arguments": arguments}
    piece = {
        "index": index,
        "id": call_id,
        "type": "function" if name else None,
        "function": {key: value for key, value in function.items() if value is not None},
    }
    return chunk(
        {"tool_calls": [{key: value for key, value in piece.items() if value is not None}]}
    )


def call(index: int, call_id: str, name: str, arguments: str) -> list[bytes]:
    """Return the chunks of a call, its arguments in two pieces."""
    half = len(arguments) // 2
    return [
        fragment(index, call_id=call_id, name=name, arguments=""),
        fragment(index, arguments=arguments[:half]),
        fragment(index, arguments=arguments[half:]),
    ]


def ending(reason: str = "stop", *, usage: Mapping[str, Any] | None = USAGE) -> list[bytes]:
    """Return the chunks after the last piece, the end marker included."""
    return [chunk(finish_reason=reason), chunk(choices=[], usage=usage), DONE]


OPENING: Final = chunk({"role": "assistant", "content": None})


def answer(
    *pieces: str, hold_after: int | None = None, gate: str = "answer", **options: Any
) -> Reply:
    """Answer with text; with `hold_after`, hold at `gate` after so many pieces."""
    frames = [OPENING, *(text(piece) for piece in pieces), *ending()]
    if hold_after is None:
        return Reply([send(*frames)], **options)
    cut = 1 + hold_after
    return Reply([send(*frames[:cut]), hold(gate), send(*frames[cut:])], **options)


def tool_calls(*calls: tuple[str, str, str], **options: Any) -> Reply:
    """Ask for calls, each (call id, tool name, arguments)."""
    frames = [OPENING]
    for index, (call_id, name, arguments) in enumerate(calls):
        frames += call(index, call_id, name, arguments)
    return Reply([send(*frames, *ending("tool_calls"))], **options)


def frames_reply(*frames: bytes | Step, **options: Any) -> Reply:
    """Answer with exactly these frames and steps."""
    steps = [frame if isinstance(frame, Step) else send(frame) for frame in frames]
    return Reply(steps, **options)
