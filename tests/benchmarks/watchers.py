"""Hundreds of pages that watch a conversation each, over real WebSockets, as a process.

python -m tests.benchmarks.watchers URL TOKEN FIRST COUNT, driven by lines of JSON:

    reconnect -> reconnected {seconds}    all sockets are cut at once and opened again
    stop      -> stopped; and everything seen is in the file named by `to`

What is noted for each text frame: when it came, its seq, how many characters. What was shown is
put together as a page would, so that a loss or a repeat shows in the text.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from tests.benchmarks.model import say


@dataclass(slots=True)
class Page:
    """One page: what it shows, and when each text frame came."""

    conversation: int
    text: str = ""
    cursor: str = ""
    frames: list[tuple[float, int]] = field(default_factory=list)
    # when it was connected, and from when on it was shown something again
    connected: list[float] = field(default_factory=list)
    snapshots: int = 0
    resyncs: int = 0
    socket: aiohttp.ClientWebSocketResponse | None = None
    shown: asyncio.Event = field(default_factory=asyncio.Event)

    async def watch(self, session: aiohttp.ClientSession, url: str) -> None:
        """Connect where it left off, and apply frames until the socket is cut."""
        self.shown.clear()
        address = f"{url}/ws/conversations/{self.conversation}/"
        async with session.ws_connect(address, params={"after": self.cursor}) as socket:
            self.socket = socket
            self.connected.append(time.time())
            if self.cursor:
                self.shown.set()
            async for message in socket:
                if message.type == aiohttp.WSMsgType.TEXT:
                    self.apply(json.loads(message.data))

    def apply(self, frame: dict[str, Any]) -> None:
        """Show what the frame says."""
        match frame["type"]:
            case "text":
                self.frames.append((time.time(), frame["seq"]))
                self.text += frame["text"]
            case "snapshot":
                self.snapshots += 1
                self.text = frame["turn"]["assistant"]["text"] or ""
            case "resync":
                self.resyncs += 1
        self.cursor = frame["cursor"]
        self.shown.set()


class Watchers:
    """All pages."""

    def __init__(self, url: str, token: str, first: int, count: int) -> None:
        self._url, self._token = url, token
        self.pages = [Page(first + n) for n in range(count)]
        self._watching: list[asyncio.Task[None]] = []

    async def open(self) -> float:
        """Open every page at once; return how long it took until all are connected."""
        began = time.time()
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(limit=0),
        )
        self._watching = [
            asyncio.create_task(page.watch(self._session, self._url)) for page in self.pages
        ]
        shown = asyncio.gather(*(page.shown.wait() for page in self.pages))
        ends: list[asyncio.Future[Any]] = [shown, *self._watching]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for broken in (task for task in self._watching if task.done()):
            broken.result()
        return time.time() - began

    async def cut(self) -> None:
        """Cut every socket without a word, as a network does."""
        for page in self.pages:
            if page.socket is not None:
                page.socket._response.close()  # the transport, not the protocol's farewell
        await asyncio.wait(self._watching)
        await asyncio.gather(*self._watching, return_exceptions=True)
        await self._session.close()


async def main(url: str, token: str, first: int, count: int) -> None:
    """Watch until told to stop."""
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(orders.put_nowait, json.loads(line))

    threading.Thread(target=listen, daemon=True).start()
    watchers = Watchers(url, token, first, count)
    say("open", seconds=await watchers.open())
    while True:
        order = await orders.get()
        if order["do"] == "reconnect":
            at = time.time()
            await watchers.cut()
            say("reconnected", seconds=await watchers.open(), at=at)
        else:
            break
    seen = [
        {
            "conversation": page.conversation, "text": page.text, "frames": page.frames,
            "connected": page.connected, "snapshots": page.snapshots, "resyncs": page.resyncs,
        }
        for page in watchers.pages
    ]  # fmt: skip
    Path(order["to"]).write_text(json.dumps(seen))
    say("stopped")
    await watchers.cut()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
