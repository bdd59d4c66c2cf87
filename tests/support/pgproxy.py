"""A TCP proxy before PostgreSQL that loses connections around a COMMIT, or another statement.

A commit lost `late` reaches the server only after `let_arrive`: the client has long given it up
and asks again meanwhile, as when a commit waits for a standby. A statement lost `late` that is
a transaction of its own is under way at the server meanwhile: what it needs is held until then.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

When = Literal["before", "after", "late"]
COMMIT: Final = b"COMMIT"
# below the server's patience, as PATIENT asks for it, with a transaction that stands still
LATE_SECONDS: Final = 50.0
# The server is to wait for locks, and for a transaction that stands still, as long as the
# second attempt takes to come on a busy machine.
PATIENT: Final = "-c idle_in_transaction_session_timeout=60s -c lock_timeout=60s"


class Proxy:
    """Passes bytes on. Once armed it counts commits and loses one of them."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.lost = threading.Event()
        self._arrive = threading.Event()
        self._upstream = host, port
        self._countdown = 0
        self._when: When = "after"
        self._statement = COMMIT
        self._hold: Callable[[], None] | None = None

    def arm(
        self,
        nth: int,
        when: When,
        *,
        statement: bytes = COMMIT,
        hold: Callable[[], None] | None = None,
    ) -> None:
        """Lose the connection of the `nth` COMMIT from now, before or after it has run.

        Or that of another `statement`, known by its text. Before one is lost late, `hold` makes
        it wait at the server.
        """
        self._when, self._statement, self._hold = when, statement, hold
        self._countdown = nth

    def let_arrive(self) -> None:
        """Pass on the commit that is late."""
        self._arrive.set()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        mute = asyncio.Event()
        answering = asyncio.ensure_future(_pass_on(up_reader, writer, mute))
        try:
            while data := await reader.read(65_536):
                if self._statement in data and self._is_the_one():
                    if self._when == "after":
                        mute.set()
                        up_writer.write(data)
                        await answering  # the server has answered, so it has run
                    self.lost.set()
                    if self._when == "late":
                        mute.set()
                        if self._hold is not None:
                            await asyncio.to_thread(self._hold)
                            up_writer.write(data)
                        writer.transport.abort()
                        await asyncio.to_thread(self._arrive.wait, LATE_SECONDS)
                        if self._hold is None:
                            up_writer.write(data)
                        await answering
                    break
                up_writer.write(data)
                await up_writer.drain()
        except OSError:
            pass
        finally:
            answering.cancel()
            for each in (writer, up_writer):
                each.transport.abort()

    def _is_the_one(self) -> bool:
        if not self._countdown:
            return False
        self._countdown -= 1
        return self._countdown == 0


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mute: asyncio.Event
) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            if mute.is_set():
                return
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    """Run a proxy in a thread of this process."""
    made = Proxy(host, port)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    ending = asyncio.Event()

    async def run() -> None:
        server = await asyncio.start_server(made._client, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        ready.set()
        await ending.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    def main() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(run())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=main, name="pgproxy", daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(60)
