"""A client of the live view: what a page does with frames, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter

from turns import bounds
from turns.routing import websocket_urlpatterns

Frame = dict[str, Any]
application = URLRouter(websocket_urlpatterns)
FRAME_SECONDS = 60.0
# The slow poll, and time to read on a busy machine; below a lease.
REPAIRED_SECONDS = bounds.SLOW_POLL_SECONDS + 10


class Shown:
    """What a page shows after the frames it has been given."""

    def __init__(self) -> None:
        self.cursor = ""
        self.conversation: Frame = {}
        self.messages: dict[str, Frame] = {}
        self.turn: Frame | None = None
        self.jobs: dict[str, Frame] = {}
        self.frames: list[Frame] = []

    def apply(self, frame: Frame) -> None:
        """Apply one frame, in the order they came."""
        self.frames.append(frame)
        self.cursor = frame["cursor"]
        content = {k: v for k, v in frame.items() if k not in {"type", "cursor"}}
        match frame["type"]:
            case "snapshot":
                self.conversation = content["conversation"]
                self.messages = {m["id"]: m for m in content["messages"]}
                self.turn = content["turn"]
                self.jobs = {j["id"]: j for j in content.get("jobs", [])}
            case "job":
                self.jobs[content["id"]] = content
            case "message":
                self.messages[content["id"]] = content
            case "turn":
                self.turn = content
            case "text":
                answer = self.answer_to(content["turn_id"])
                assert answer["state"] == "streaming"
                answer["text"] += content["text"]
            case "resync" | "pong":
                pass
            case other:
                raise AssertionError(f"unknown frame {other}")

    def answer_to(self, turn_id: str) -> Frame:
        """Return the assistant's message of a turn."""
        return next(
            m
            for m in self.messages.values()
            if m["role"] == "assistant" and m["turn_id"] == turn_id
        )

    @property
    def texts(self) -> dict[str, str]:
        """The text of each message shown."""
        return {key: m["text"] for key, m in self.messages.items()}


class LiveClient:
    """One WebSocket on the ASGI application, with what it has shown so far."""

    def __init__(
        self,
        conversation: object,
        headers: Mapping[str, str],
        *,
        after: str = "",
        shown: Shown | None = None,
    ) -> None:
        self.shown = shown or Shown()
        self.close_code: int | None = None
        path = f"/ws/conversations/{conversation}/"
        self.socket = ApplicationCommunicator(
            application,
            {
                "type": "websocket",
                "path": path,
                "query_string": f"after={quote(after)}".encode() if after else b"",
                "headers": [
                    (name.encode(), value.encode())
                    for name, value in {"host": "testserver", **headers}.items()
                ],
                "subprotocols": [],
            },
        )

    async def connect(self) -> LiveClient:
        """Open the socket and read its accept, or its close."""
        await self.socket.send_input({"type": "websocket.connect"})
        answer = await self.socket.receive_output(FRAME_SECONDS)
        if answer["type"] == "websocket.close":
            self.close_code = answer.get("code", 1000)
        return self

    async def next(self, seconds: float = FRAME_SECONDS) -> Frame:
        """Return the next frame, applied; a close ends the test."""
        answer = await self.socket.receive_output(seconds)
        assert answer["type"] == "websocket.send", answer
        frame: Frame = json.loads(answer["text"])
        assert len(answer["text"].encode()) <= 64 * 1024
        self.shown.apply(frame)
        return frame

    async def until(self, kind: str, **content: object) -> Frame:
        """Apply frames until one of this kind and content, and return it."""
        while True:
            frame = await self.next()
            if frame["type"] == kind and content.items() <= frame.items():
                return frame

    async def closed(self, seconds: float = FRAME_SECONDS) -> int:
        """Return the code the server closes with; what it sends before is applied."""
        while True:
            answer = await self.socket.receive_output(seconds)
            if answer["type"] == "websocket.close":
                return int(answer.get("code", 1000))
            self.shown.apply(json.loads(answer["text"]))

    async def send(self, text: str) -> None:
        """Send a frame of ours."""
        await self.socket.send_input({"type": "websocket.receive", "text": text})

    async def leave(self) -> Shown:
        """Close, and return what was shown."""
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait(FRAME_SECONDS)
        return self.shown
