"""What a scripted service answers, as values that travel as JSON."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Framing = Literal["chunked", "length", "close", "raw"]


@dataclass(frozen=True, slots=True)
class Step:
    """One move of a reply: send | raw | drip | hold | close | reset."""

    do: str
    data: bytes = b""
    gate: str = ""
    size: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "do": self.do,
            "data": base64.b64encode(self.data).decode(),
            "gate": self.gate,
            "size": self.size,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Step:
        return cls(**{**value, "data": base64.b64decode(value["data"])})


def send(*frames: bytes) -> Step:
    """Send body bytes, framed as the reply says, in one write."""
    return Step("send", b"".join(frames))


def raw(data: bytes) -> Step:
    """Send bytes past all framing."""
    return Step("raw", data)


def drip(data: bytes, *, size: int = 1, seconds: float = 0.0) -> Step:
    """Send body bytes in pieces of `size`, each a write of its own, with pauses."""
    return Step("drip", data, size=size, seconds=seconds)


def hold(gate: str) -> Step:
    """Wait until the test opens `gate` or the client is gone."""
    return Step("hold", gate=gate)


def close() -> Step:
    """Close the connection without the end of the framing."""
    return Step("close")


def reset() -> Step:
    """Reset the connection."""
    return Step("reset")


@dataclass(frozen=True, slots=True)
class Reply:
    """One scripted answer. Without a closing step it ends properly.

    Attributes:
        steps: the body, step by step.
        hold_head: a gate before the status line.
        match: only requests whose body contains this text are answered so.
        repeat: answer any number of requests so.
    """

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "text/event-stream"}
    )
    framing: Framing = "chunked"
    hold_head: str = ""
    match: str = ""
    repeat: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": [step.as_json() for step in self.steps],
            "status": self.status,
            "headers": dict(self.headers),
            "framing": self.framing,
            "hold_head": self.hold_head,
            "match": self.match,
            "repeat": self.repeat,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Reply:
        steps = tuple(Step.from_json(step) for step in value["steps"])
        return cls(**{**value, "steps": steps})


def json_reply(value: object, *, status: int = 200, **options: Any) -> Reply:
    """Answer with a JSON body."""
    body = json.dumps(value).encode()
    headers = {"Content-Type": "application/json"}
    return Reply((send(body),), status=status, headers=headers, framing="length", **options)


def error_reply(
    status: int, *, code: object = None, kind: str = "", message: str = ""
) -> Reply:
    """Answer with an OpenAI-style error envelope."""
    return json_reply(
        {"error": {"message": message, "type": kind, "code": code}}, status=status
    )


def packed(reply: Reply) -> Reply:
    """Send the same body gzip-compressed, as a server does that ignores Accept-Encoding."""
    body = b"".join(step.data for step in reply.steps)
    headers = {**reply.headers, "Content-Encoding": "gzip"}
    return Reply((send(gzip.compress(body)),), status=reply.status, headers=headers)
