"""The scripted service itself: a small HTTP/1.1 server that can misbehave byte by byte."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.simulators.replies import Reply, Step

CONTROL: Final = "/_control/"
CLOSING: Final = frozenset({"close", "reset"})
# The answer beyond the script: always the same, or made from the body of the request.
Default = Reply | Callable[[bytes], Reply]


class Gone(Exception):
    """The client has closed its side."""


@dataclass(slots=True)
class Recorded:
    """One request as it came in, and how far its answer got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    state: str = "received"

    def as_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "path": self.path,
            "headers": self.headers,
            "body": base64.b64encode(self.body).decode(),
            "connection": self.connection,
            "state": self.state,
        }


@dataclass(slots=True)
class Connection:
    """One client's connection."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def request(self) -> Recorded | None:
        """Return the next request, None when the client has closed."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.rstrip().split("\r\n")
            method, path, _ = first.split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
            return Recorded(method, path, headers, body, self.number)
        return None

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Return when the client has closed: a client waiting for its answer sends nothing."""
        with suppress(ConnectionError):
            await self.reader.read(1)


@dataclass(slots=True)
class Service:
    """Scripted replies, recorded requests and gates behind one port."""

    default: Default
    script: list[Reply] = field(default_factory=list)
    requests: list[Recorded] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    clients: set[asyncio.Task[None]] = field(default_factory=set)
    accepted: int = 0

    async def start(self, port: int = 0, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        """Listen on the loopback."""
        return await asyncio.start_server(
            self._accept, "127.0.0.1", port, ssl=tls, limit=4 * 1024 * 1024, backlog=1024
        )

    def stop(self) -> None:
        """End every connection."""
        for client in self.clients:
            client.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.clients.add(task)
        self.accepted += 1
        connection = Connection(self.accepted, reader, writer)
        try:
            while (request := await connection.request()) is not None:
                if request.path.startswith(CONTROL):
                    keep = await self._control(request, connection)
                else:
                    keep = await self._answer(request, connection)
                if not keep:
                    break
        except (ConnectionError, Gone, asyncio.CancelledError):
            pass
        finally:
            self.clients.discard(task)
            writer.close()

    # the scripted side

    async def _answer(self, request: Recorded, connection: Connection) -> bool:
        async with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        reply = self._choose(request)
        try:
            if reply.hold_head:
                await self._hold(reply.hold_head, request, connection)
            await connection.write(_head(reply))
            for step in reply.steps:
                await self._play(step, reply, request, connection)
                if step.do in CLOSING:
                    await self._mark(request, "finished")
                    return False
            if reply.framing == "chunked":
                await connection.write(b"0\r\n\r\n")
        except (ConnectionError, Gone):
            await self._mark(request, "disconnected")
            raise
        await self._mark(request, "finished")
        return reply.framing in {"chunked", "length"}

    def _choose(self, request: Recorded) -> Reply:
        for index, reply in enumerate(self.script):
            if reply.match.encode() in request.body:
                return reply if reply.repeat else self.script.pop(index)
        return self.default if isinstance(self.default, Reply) else self.default(request.body)

    async def _play(
        self, step: Step, reply: Reply, request: Recorded, connection: Connection
    ) -> None:
        match step.do:
            case "send":
                await connection.write(_framed(step.data, reply))
            case "raw":
                await connection.write(step.data)
            case "drip":
                for start in range(0, len(step.data), step.size):
                    piece = step.data[start : start + step.size]
                    await connection.write(_framed(piece, reply))
                    await asyncio.sleep(step.seconds)
            case "hold":
                await self._hold(step.gate, request, connection)
            case "reset":
                linger = struct.pack("ii", 1, 0)
                raw_socket = connection.writer.get_extra_info("socket")
                raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                connection.writer.transport.abort()
            case "close":
                pass
            case other:
                raise ValueError(other)

    async def _hold(self, gate: str, request: Recorded, connection: Connection) -> None:
        await self._mark(request, f"held:{gate}")
        opened = asyncio.ensure_future(self._gate(gate).wait())
        gone = asyncio.ensure_future(connection.gone())
        try:
            await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise Gone
        finally:
            opened.cancel()
            gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone
        await self._mark(request, "answering")

    def _gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def _mark(self, request: Recorded, state: str) -> None:
        async with self.changed:
            request.state = state
            self.changed.notify_all()

    # the side the test talks to

    async def _control(self, request: Recorded, connection: Connection) -> bool:
        address = urlsplit(request.path)
        query = {key: values[-1] for key, values in parse_qs(address.query).items()}
        verb, _, argument = address.path.removeprefix(CONTROL).partition("/")
        status, answer = 200, None
        match verb:
            case "script":
                self.script += [Reply.from_json(item) for item in json.loads(request.body)]
            case "requests":
                answer = [item.as_json() for item in self.requests]
            case "release":
                self._gate(argument).set()
            case "reset":
                self.script.clear()
                self.requests.clear()
                for gate in self.gates.values():
                    gate.set()
                self.gates.clear()
            case "wait":
                reached = await self._reached(
                    query["state"], int(query["count"]), float(query["seconds"])
                )
                status = 200 if reached else 408
            case _:
                status = 404
        body = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} Control\r\nContent-Length: {len(body)}\r\n\r\n"
        await connection.write(head.encode() + body)
        return True

    async def _reached(self, state: str, count: int, seconds: float) -> bool:
        def enough() -> bool:
            seen = sum(1 for item in self.requests if state in {"received", item.state})
            return seen >= count

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(enough)
                return True
        return False


def _head(reply: Reply) -> bytes:
    if reply.framing == "raw":
        return b""
    headers = dict(reply.headers)
    if reply.framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    elif reply.framing == "length":
        headers["Content-Length"] = str(sum(len(step.data) for step in reply.steps))
    else:
        headers["Connection"] = "close"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode("latin-1")


def _framed(data: bytes, reply: Reply) -> bytes:
    if reply.framing != "chunked" or not data:
        return data
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
