"""A Channels layer on PostgreSQL's LISTEN and NOTIFY, for hints of the embedded stack.

A hint is small and may be lost: readers poll slowly all the same. It travels on connections of
its own, after the data's commit, and never in the data's transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg
import structlog
from channels.exceptions import ChannelFull
from channels.layers import BaseChannelLayer
from django.conf import settings

from recovery.connections import session_parameters

log = structlog.get_logger(__name__)

PG_CHANNEL: Final = "holdfast_hints"
# PostgreSQL refuses a payload of 8,000 bytes or more.
ENVELOPE_MAX_BYTES: Final = 7_999
BATCH_MAX_ITEMS: Final = 100
KNOWN_SENDERS_MAX_ITEMS: Final = 1_024
RECONNECT_FIRST_SECONDS: Final = 0.1
RECONNECT_MAX_SECONDS: Final = 2.0

# A listener says nothing by itself: without these it waits for hours on a peer that vanished.
KEEPALIVES: Final[dict[str, Any]] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}

# Of the type json, not jsonb: each envelope is passed on as it was written.
NOTIFY: Final = b"SELECT pg_notify($1, e::text) FROM json_array_elements($2::json) e"

# In ASCII, so that a character is a byte.
encode: Final = json.JSONEncoder(separators=(",", ":")).encode

Message = dict[str, Any]
Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class HintTooLarge(ValueError):
    """A message does not fit into one notification. Nothing was sent."""


async def connect() -> Connection:
    """Return a connection of our own to the default database, around a pooler."""
    own: dict[str, Any] = {
        "autocommit": True,
        "application_name": "holdfast-hints",
        "prepare_threshold": None,
    }
    if settings.DIRECT_DATABASE_URL:
        return await psycopg.AsyncConnection.connect(
            settings.DIRECT_DATABASE_URL, **own, **KEEPALIVES
        )
    return await psycopg.AsyncConnection.connect(**{**session_parameters(), **own})


class NotifyChannelLayer(BaseChannelLayer):  # type: ignore[misc]  # untyped
    """The Channels API over one notification channel of the database.

    Groups and process-specific channels (`new_channel`) work across processes; a plain channel
    name, of which any one reader takes a message, does not exist here. Delivery is at most
    once, in the order of one sender. Each event loop has its own connections to send and to
    read; both are made again when they are lost, and end with the loop.
    """

    extensions = ["groups"]

    def __init__(self, capacity: int = 100, **kwargs: Any) -> None:
        super().__init__(capacity=capacity, **kwargs)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()

    def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops[loop] = _Loop(self.capacity)
        return self._loops[loop]

    async def new_channel(self, prefix: str = "specific") -> str:
        """Return the name of a channel that only this event loop receives from."""
        here = self._here()
        await here.listening()
        return here.open(prefix)

    async def send(self, channel: str, message: Message) -> None:
        """Send to one channel.

        Raises:
            ChannelFull: the channel is in this process and its reader does not keep up.
        """
        self.require_valid_channel_name(channel)
        if "!" not in channel:
            raise NotImplementedError("only channels made by new_channel() have a reader here")
        here = self._here()
        if channel in here.queues:
            here.put(channel, message)
        else:
            await here.notify({"c": channel, "m": message})

    async def receive(self, channel: str) -> Message:
        """Return the next message of a channel of this event loop."""
        here = self._here()
        try:
            return await here.queues[channel].get()
        except asyncio.CancelledError:
            # The consumer went away without a word; nobody else can read this channel.
            here.close(channel)
            raise

    async def group_add(self, group: str, channel: str) -> None:
        """Subscribe a channel of this event loop; return when the subscription is in force."""
        self.require_valid_group_name(group)
        here = self._here()
        if channel not in here.queues:
            raise ValueError("a channel joins a group where it is received")
        await here.listening()
        here.groups.setdefault(group, set()).add(channel)

    async def group_discard(self, group: str, channel: str) -> None:
        """End a subscription; unknown ones are ignored."""
        here = self._here()
        here.leave(group, channel)

    async def group_send(self, group: str, message: Message) -> None:
        """Send to every subscriber of every process; a full one misses it.

        Raises:
            HintTooLarge: the message is larger than one notification.
            psycopg.Error: the database cannot be reached; nobody got it, or will.
        """
        self.require_valid_group_name(group)
        await self._here().notify({"g": group, "m": message})

    async def close(self) -> None:
        """End this event loop's connections."""
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.stop()


@dataclass(eq=False, slots=True)
class _Batch:
    """Envelopes that leave in one statement, and what became of them."""

    texts: list[str] = field(default_factory=list)
    settled: bool = False
    failure: psycopg.Error | None = None


class _Loop:
    """One event loop's channels, its sending and its reader."""

    def __init__(self, capacity: int) -> None:
        self.queues: dict[str, asyncio.Queue[Message]] = {}
        self.groups: dict[str, set[str]] = {}
        self._capacity = capacity
        self._sender_id = uuid.uuid4().hex
        self._sent = 0
        self._batch = _Batch()
        self._sending = asyncio.Lock()
        self._connection: Connection | None = None
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._subscribed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None

    # --- channels ---

    def open(self, prefix: str) -> str:
        channel = f"{prefix}.{self._sender_id}!{uuid.uuid4().hex}"
        self.queues[channel] = asyncio.Queue(self._capacity)
        return channel

    def close(self, channel: str) -> None:
        self.queues.pop(channel, None)
        for group in list(self.groups):
            self.leave(group, channel)

    def leave(self, group: str, channel: str) -> None:
        members = self.groups.get(group, set())
        members.discard(channel)
        if not members:
            self.groups.pop(group, None)

    def put(self, channel: str, message: Message) -> None:
        try:
            self.queues[channel].put_nowait(message)
        except asyncio.QueueFull:
            raise ChannelFull from None

    # --- sending ---

    async def notify(self, envelope: Message) -> None:
        self._sent += 1
        text = encode({"s": self._sender_id, "n": self._sent, **envelope})
        if len(text) > ENVELOPE_MAX_BYTES:
            raise HintTooLarge
        if len(self._batch.texts) == BATCH_MAX_ITEMS:
            self._batch = _Batch()
        batch = self._batch
        batch.texts.append(text)
        async with self._sending:
            # Whoever is first sends for all who wait: a commit each is dear.
            if not batch.settled:
                if batch is self._batch:
                    self._batch = _Batch()
                await self._send(batch)
        if batch.failure is not None:
            raise batch.failure

    async def _send(self, batch: _Batch) -> None:
        """Settle `batch` with up to two tries.

        A connection that died while idle shows it only when used, hence the second try. If the
        first one got through after all, readers drop its repeat by the number.
        """
        hints = f"[{','.join(batch.texts)}]".encode()
        for _ in range(2):
            try:
                connection = self._connection or await self._open()
                await _execute(connection.pgconn, NOTIFY, [PG_CHANNEL.encode(), hints])
            except BaseException as error:
                await self._close()
                if not isinstance(error, psycopg.Error):  # cancelled: the others try again
                    raise
                batch.failure = error
            else:
                batch.failure = None
                break
        batch.settled = True

    async def _open(self) -> Connection:
        if self._closer is None:
            self._closer = asyncio.create_task(self._close_at_the_end(), name="hints.closer")
        self._connection = connection = await connect()
        # Notifying is a commit; no hint is worth a wait for the disk.
        await connection.execute("SET synchronous_commit = off")
        return connection

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    async def _close_at_the_end(self) -> None:
        """Wait to be cancelled, as every task is at the end of its loop, and close."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._close()

    # --- receiving ---

    async def listening(self) -> None:
        """Return when the reader has subscribed once; later losses it repairs itself."""
        if self._reader is None or self._reader.done():
            self._subscribed.clear()
            self._reader = asyncio.create_task(self._read_all(), name="hints.reader")
        await self._subscribed.wait()

    async def _read_all(self) -> None:
        """Read for ever. Whatever goes wrong, the reader comes back: nobody would notice that
        it had ended but by the slow poll."""
        delay = RECONNECT_FIRST_SECONDS
        while True:
            began = time.monotonic()
            try:
                await self._read()
            except Exception as failure:  # this task's outermost loop
                if time.monotonic() - began > RECONNECT_MAX_SECONDS:
                    delay = RECONNECT_FIRST_SECONDS
                log.warning("hints.connection_lost", retry_in_seconds=delay, exc_info=failure)
            # A group may be joined meanwhile: its reader polls, and hints resume by themselves.
            self._subscribed.set()
            await asyncio.sleep(delay)
            delay = min(delay * 2, RECONNECT_MAX_SECONDS)

    async def _read(self) -> None:
        """Read until the connection is lost."""
        connection = await connect()
        try:
            await connection.execute(f"LISTEN {PG_CHANNEL}")
            self._subscribed.set()
            async for notification in connection.notifies():
                try:
                    self._deliver(notification.payload)
                except Exception as failure:  # anybody may notify whatever they like
                    log.warning("hints.dropped", reason="unreadable", exc_info=failure)
        finally:
            await _close(connection)

    def _deliver(self, payload: str) -> None:
        envelope = json.loads(payload)
        sender, number = str(envelope["s"]), int(envelope["n"])
        message = dict(envelope["m"])
        if self._seen.get(sender, 0) >= number:
            return
        self._seen[sender] = number
        self._seen.move_to_end(sender)
        if len(self._seen) > KNOWN_SENDERS_MAX_ITEMS:
            self._seen.popitem(last=False)
        channels = self.groups.get(envelope.get("g"), {envelope.get("c")})
        for channel in tuple(channels):
            if channel in self.queues:
                with contextlib.suppress(ChannelFull):
                    self.put(channel, dict(message))

    async def stop(self) -> None:
        tasks = [task for task in (self._reader, self._closer) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _execute(
    pgconn: psycopg.pq.abc.PGconn, statement: bytes, parameters: list[bytes | None]
) -> None:
    """Execute a statement whose rows nobody wants.

    By hand, because a cursor takes thrice as long for it, and answers a cancellation by asking
    the server to cancel and waiting up to ten seconds: too long where a hung server is the
    reason. Here the caller closes the connection.
    """
    loop = asyncio.get_running_loop()
    pgconn.send_query_params(statement, parameters)
    while pgconn.flush():
        await _ready(pgconn.socket, loop.add_writer, loop.remove_writer)
    while True:
        while pgconn.is_busy():
            await _ready(pgconn.socket, loop.add_reader, loop.remove_reader)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            raise psycopg.OperationalError(result.get_error_message())


async def _ready(
    descriptor: int,
    watch: Callable[[int, Callable[[], None]], None],
    unwatch: Callable[[int], bool],
) -> None:
    """Return when `descriptor` is ready for what `watch` looks for."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle() -> None:
        # Called again if the loop turns once more before we do.
        if not ready.done():
            ready.set_result(None)

    watch(descriptor, settle)
    try:
        await ready
    finally:
        unwatch(descriptor)


async def _close(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.close()
