"""A model service for load: hundreds of Responses streams at one even pace, as a process.

python -m tests.benchmarks.model, driven by lines of JSON (`tests.support.processes`):

    expect {streams, per_second, bytes}   -> ready once so many requests are being answered
    go                                    deltas begin; every one starts with its time
    count                                 -> count {deltas}
    stop                                  -> stopped {deltas}; the streams stay open
    finish                                -> finished {texts: question -> SHA-256 of the answer}

A plain asyncio protocol: the service should cost little beside what is measured.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
import time
from typing import Any, Final, cast

import uvloop

SLOTS: Final = 20
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# what the service of that name sends with each delta
DELTA: Final = (
    'event: response.output_text.delta\ndata: {{"type":"response.output_text.delta",'
    '"sequence_number":{n},"item_id":"msg_1","output_index":0,"content_index":0,'
    '"delta":"{text}","logprobs":[]}}\n\n'
)


def say(event: str, **values: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def frame(kind: str, **members: Any) -> str:
    """Return one event of the stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"


def chunk(data: str) -> bytes:
    """Return it as one HTTP chunk."""
    raw = data.encode()
    return b"%x\r\n%b\r\n" % (len(raw), raw)


class Stream(asyncio.Protocol):
    """One connection: its request, then its answer."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._texts: list[str] = []
        self._sent = 4
        self.question = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next(int(x[15:]) for x in lines if x.startswith("content-length:"))
        if len(body) < length:
            return
        self._received = body[length:]
        self.question = json.loads(body[:length])["input"][-1]["content"][0]["text"]
        self._begin()

    def connection_lost(self, _error: Exception | None) -> None:
        self._service.open.discard(self)
        self._transport = None

    def _begin(self) -> None:
        assert self._transport is not None
        response = {"id": f"resp_{id(self)}", "status": "in_progress", "output": []}
        item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        opening = frame("response.created", sequence_number=0, response=response)
        opening += frame("response.in_progress", sequence_number=1, response=response)
        opening += frame(
            "response.output_item.added", sequence_number=2, output_index=0, item=item
        )
        part = {"type": "output_text", "text": "", "annotations": []}
        opening += frame(
            "response.content_part.added", sequence_number=3, item_id="msg_1",
            output_index=0, content_index=0, part=part,
        )  # fmt: skip
        self._transport.write(HEAD + chunk(opening))
        self._texts, self._sent = [], 4
        self._service.began(self)

    def delta(self, text: str) -> None:
        """Send one piece of the answer."""
        if self._transport is None:
            return
        self._texts.append(text)
        self._transport.write(chunk(DELTA.format(n=self._sent, text=text)))
        self._sent += 1

    def finish(self) -> str:
        """Send the end; return the whole answer."""
        text = "".join(self._texts)
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
            "content": [part],
        }  # fmt: skip
        end = frame(
            "response.completed",
            sequence_number=self._sent,
            response={
                "id": f"resp_{id(self)}",
                "status": "completed",
                "output": [item],
                "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
            },
        )
        if self._transport is not None:
            self._transport.write(chunk(end) + b"0\r\n\r\n")
        return text


class Service:
    """All connections, and the pace."""

    def __init__(self) -> None:
        self.open: set[Stream] = set()
        self._streams: list[Stream] = []
        self._wanted = self._per_second = self._bytes = self._deltas = 0
        self._pacing: asyncio.Task[None] | None = None

    def began(self, stream: Stream) -> None:
        """Count a request that is being answered."""
        self.open.add(stream)
        self._streams.append(stream)
        if len(self._streams) == self._wanted:
            say("ready")

    def obey(self, line: dict[str, Any]) -> None:
        """Do what the line says."""
        match line["do"]:
            case "expect":
                self._streams = []
                self._wanted, self._deltas = line["streams"], 0
                self._per_second, self._bytes = line["per_second"], line["bytes"]
            case "go":
                self._pacing = asyncio.create_task(self._pace())
            case "count":
                say("count", deltas=self._deltas)
            case "stop":
                if self._pacing is not None:
                    self._pacing.cancel()
                say("stopped", deltas=self._deltas)
            case "finish":
                texts = {s.question: s.finish() for s in self._streams}
                say(
                    "finished",
                    texts={q: hashlib.sha256(t.encode()).hexdigest() for q, t in texts.items()},
                )

    async def _pace(self) -> None:
        """Send each stream a delta every 1/per_second, the streams spread evenly."""
        loop = asyncio.get_running_loop()
        slot_seconds = 1 / self._per_second / SLOTS
        began, slot = loop.time(), 0
        groups = [self._streams[n::SLOTS] for n in range(SLOTS)]
        while True:
            for stream in groups[slot % SLOTS]:
                stream.delta(f"{time.time():.6f};".ljust(self._bytes, "."))
                self._deltas += 1
            slot += 1
            await asyncio.sleep(max(0.0, began + slot * slot_seconds - loop.time()))


async def main() -> None:
    """Serve until the starter is gone."""
    loop = asyncio.get_running_loop()
    service = Service()
    server = await loop.create_server(lambda: Stream(service), "127.0.0.1", 0, backlog=1024)
    ended = asyncio.Event()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(service.obey, json.loads(line))
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=listen, daemon=True).start()
    say("listening", port=server.sockets[0].getsockname()[1])
    await ended.wait()


if __name__ == "__main__":
    uvloop.run(main())
