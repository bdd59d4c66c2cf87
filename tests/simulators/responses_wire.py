"""Frames of the Responses API as OpenAI writes them, and whole replies made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulators.replies import Reply, Step, hold, send

RESPONSE_ID: Final = "resp_1"
USAGE: Final = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 14,
}


def event(kind: str, **members: Any) -> bytes:
    """Return one event."""
    return sse(kind, {"type": kind, **members})


def sse(name: str, value: object) -> bytes:
    """Return one event with any data; without a name it has no `event:` line."""
    lead = f"event: {name}\n" if name else ""
    return f"{lead}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode(
        "utf-8", "surrogatepass"
    )


def message(text: str, *, item_id: str = "msg_1", **members: Any) -> dict[str, Any]:
    """Return a message item."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **members,
    }


def call(
    name: str,
    arguments: str,
    *,
    call_id: str | None = "call_1",
    item_id: str = "fc_1",
    **members: Any,
) -> dict[str, Any]:
    """Return a function call item."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
        **members,
    }


def response(
    output: Sequence[Mapping[str, Any]] = (),
    *,
    status: str = "completed",
    response_id: str = RESPONSE_ID,
    usage: Mapping[str, Any] | None = None,
    **members: Any,
) -> dict[str, Any]:
    """Return a response object."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_700_000_000,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "status": status,
        "model": "scripted",
        "output": list(output),
        "usage": usage,
        **members,
    }


@dataclass(slots=True)
class Stream:
    """Numbers the events of one response, as the service does."""

    response_id: str = RESPONSE_ID
    number: int = 0
    output: list[dict[str, Any]] = field(default_factory=list)

    def event(self, kind: str, **members: Any) -> bytes:
        """Return the next event."""
        frame = event(kind, sequence_number=self.number, **members)
        self.number += 1
        return frame

    def opening(self) -> list[bytes]:
        """Return the events before the first item."""
        snapshot = response(status="in_progress", response_id=self.response_id)
        return [
            self.event("response.created", response=snapshot),
            self.event("response.in_progress", response=snapshot),
        ]

    def message(self, *deltas: str, item_id: str = "msg_1") -> list[bytes]:
        """Return the events of a message item, one for each delta."""
        where = {"item_id": item_id, "output_index": len(self.output), "content_index": 0}
        index = {"output_index": len(self.output)}
        text = "".join(deltas)
        item = message(text, item_id=item_id)
        opened = {**item, "status": "in_progress", "content": []}
        empty = {"type": "output_text", "text": "", "annotations": []}
        frames = [
            self.event("response.output_item.added", item=opened, **index),
            self.event("response.content_part.added", part=empty, **where),
        ]
        frames += [
            self.event("response.output_text.delta", delta=delta, logprobs=[], **where)
            for delta in deltas
        ]
        frames += [
            self.event("response.output_text.done", text=text, logprobs=[], **where),
            self.event("response.content_part.done", part=item["content"][0], **where),
            self.event("response.output_item.done", item=item, **index),
        ]
        self.output.append(item)
        return frames

    def call(
        self,
        name: str,
        arguments: str,
        *,
        call_id: str | None = "call_1",
        item_id: str = "fc_1",
    ) -> list[bytes]:
        """Return the events of a function call, its arguments in two deltas."""
        where = {"item_id": item_id, "output_index": len(self.output)}
        index = {"output_index": len(self.output)}
        item = call(name, arguments, call_id=call_id, item_id=item_id)
        opened = {**item, "arguments": "", "status": "in_progress"}
        half = len(arguments) // 2
        frames = [self.event("response.output_item.added", item=opened, **index)]
        frames += [
            self.event("response.function_call_arguments.delta", delta=piece, **where)
            for piece in (arguments[:half], arguments[half:])
        ]
        frames += [
            self.event("response.function_call_arguments.done", arguments=arguments, **where),
            self.event("response.output_item.done", item=item, **index),
        ]
        self.output.append(item)
        return frames

    def terminal(self, status: str = "completed", **members: Any) -> bytes:
        """Return the terminal event, which repeats the output."""
        members.setdefault("usage", USAGE)
        snapshot = response(self.output, status=status, response_id=self.response_id, **members)
        return self.event(f"response.{status}", response=snapshot)


def answer(
    *deltas: str,
    response_id: str = RESPONSE_ID,
    hold_after: int | None = None,
    gate: str = "answer",
    **options: Any,
) -> Reply:
    """Answer with text; with `hold_after`, hold at `gate` after so many deltas."""
    stream = Stream(response_id)
    frames = [*stream.opening(), *stream.message(*deltas), stream.terminal()]
    if hold_after is None:
        return Reply([send(*frames)], **options)
    # two events open the response, two the message
    cut = 4 + hold_after
    return Reply([send(*frames[:cut]), hold(gate), send(*frames[cut:])], **options)


def tool_calls(
    *calls: tuple[str, str, str], text: str = "", response_id: str = RESPONSE_ID, **options: Any
) -> Reply:
    """Ask for calls, each (call id, tool name, arguments)."""
    stream = Stream(response_id)
    frames = stream.opening()
    if text:
        frames += stream.message(text)
    for index, (call_id, name, arguments) in enumerate(calls):
        frames += stream.call(name, arguments, call_id=call_id, item_id=f"fc_{index}")
    frames.append(stream.terminal())
    return Reply([send(*frames)], **options)


def stalled(*deltas: str, gate: str = "answer", **options: Any) -> Reply:
    """Send text and then nothing more until `gate` is opened; then the rest of the answer."""
    return answer(*deltas, hold_after=len(deltas), gate=gate, **options)


def frames_reply(*frames: bytes | Step, **options: Any) -> Reply:
    """Answer with exactly these frames and steps."""
    steps = [frame if isinstance(frame, Step) else send(frame) for frame in frames]
    return Reply(steps, **options)
