"""The live view of a web process: one reader for all of its open pages.

A hint names a conversation that has changed. The reader gathers hints, reads in one statement
what its own views have not seen, and hands it to them. Every view has a cursor, so a hint that
is lost, doubled or late costs a read and nothing else; a poll every two seconds repairs a
channel layer that is silent, and asks whether everybody may still look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, TypeVar

import psycopg
import structlog
from channels.layers import get_channel_layer

from recovery.connections import session_parameters
from recovery.executor import in_thread
from turns import bounds, credentials, events, frames, projection
from turns.credentials import Credential
from turns.projection import Cursor, Watched

log = structlog.get_logger(__name__)

CLOSED_NOT_SIGNED_IN: Final = 4401
CLOSED_NOT_FOUND: Final = 4404
CLOSED_TOO_LARGE: Final = 4413
CLOSED_BY_FAILURE: Final = 1011

# Reads no more often than this: a burst of hints is one statement.
TICK_SECONDS: Final = 0.02
# Snapshots made in one tick; the views beyond wait for the next.
SNAPSHOTS_PER_TICK: Final = 32
READ_TIMEOUT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = (0.05, 0.2, 0.5, 1.0)
LAYER_RETRY_SECONDS: Final = 1.0
# What a client that does not read may hold up here before it is shown a snapshot instead.
OUTBOX_MAX_ITEMS: Final = 256
OUTBOX_MAX_CHARS: Final = 8 * bounds.EVENT_OUT_MAX_BYTES

Place = tuple[int, int, Cursor]
Shown = tuple[list[str], Cursor]
T = TypeVar("T")


@dataclass(eq=False, slots=True)
class View:
    """One open page on one conversation: what it has seen and what waits to be sent to it."""

    conversation_id: int
    credential: Credential
    # None as long as only a snapshot can continue it
    cursor: Cursor | None
    outbox: deque[str] = field(default_factory=deque)
    outbox_chars: int = 0
    close_code: int | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def place(self) -> tuple[int, int]:
        """Which conversation is shown, to whom."""
        return self.conversation_id, self.credential.user_id

    def put(self, texts: Iterable[str], cursor: Cursor) -> None:
        """Add frames to be sent; but when the client has left too many, give up on all."""
        if self.close_code is not None:
            return
        # judged before adding: what one read brings always has room, so that a snapshot and
        # the text that follows it end this
        if len(self.outbox) > OUTBOX_MAX_ITEMS or self.outbox_chars > OUTBOX_MAX_CHARS:
            self.outbox.clear()
            self.outbox_chars = 0
            texts, self.cursor = [frames.resync(cursor, "slow")], None
            log.info("live.resync", conversation_id=self.conversation_id, reason="slow")
        else:
            self.cursor = cursor
        for text in texts:
            self.outbox.append(text)
            self.outbox_chars += len(text)
        if self.outbox:
            self.ready.set()

    def answer_ping(self) -> None:
        """Say that this end is alive and where it is, so that a client can compare."""
        if self.cursor is not None and not self.outbox:
            self.put([frames.encode("pong", self.cursor, {})], self.cursor)

    def take(self) -> str | None:
        """Return the next frame to send, None when there is none."""
        if not self.outbox:
            return None
        text = self.outbox.popleft()
        self.outbox_chars -= len(text)
        return text

    def close(self, code: int) -> None:
        """Show nothing more, not even what waits."""
        self.close_code = code
        self.outbox.clear()
        self.outbox_chars = 0
        self.ready.set()


class Reader:
    """Reads for every view of this process, on its event loop and a connection of its own."""

    def __init__(self) -> None:
        self._views: dict[int, set[View]] = defaultdict(set)
        self._due: set[int] = set()
        self._unshown: set[View] = set()
        self._wake = asyncio.Event()
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._failures = 0
        self._tasks: list[asyncio.Task[None]] = []
        # Rendering a long answer takes milliseconds that the event loop does not have.
        self._renderer = ThreadPoolExecutor(1, thread_name_prefix="live.render")

    def start(self) -> None:
        """Begin to listen and to read."""
        self._tasks = [
            asyncio.create_task(self._listen_for_ever(), name="live.hints"),
            asyncio.create_task(self._read_for_ever(), name="live.reader"),
            asyncio.create_task(self._poll_for_ever(), name="live.poll"),
        ]

    async def stop(self) -> None:
        """End without a word to the views: their server closes them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._disconnect()
        self._renderer.shutdown(wait=False)

    def join(self, view: View) -> None:
        """Show `view` what it has not seen, from now on."""
        self._views[view.conversation_id].add(view)
        self.want(view)

    def leave(self, view: View) -> None:
        """Forget `view`."""
        self._unshown.discard(view)
        views = self._views[view.conversation_id]
        views.discard(view)
        if not views:
            del self._views[view.conversation_id]

    def want(self, view: View) -> None:
        """Read for `view` soon."""
        if view.cursor is None:
            self._unshown.add(view)
        else:
            self._due.add(view.conversation_id)
        self._wake.set()

    @property
    def view_count(self) -> int:
        """How many pages are open."""
        return sum(map(len, self._views.values()))

    # --- What makes it read ---

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except Exception as error:  # the poll goes on without hints
                log.warning("live.no_hints", exc_info=error)
                await asyncio.sleep(LAYER_RETRY_SECONDS)

    async def _listen(self) -> None:
        """Listen until something goes wrong."""
        layer = get_channel_layer()
        channel = await layer.new_channel()
        try:
            await layer.group_add(events.GROUP, channel)
            # what was announced before we listened is read now
            self._hint(self._views)
            while True:
                message = await layer.receive(channel)
                try:
                    self._hint(message.get("c", ()))
                except (AttributeError, TypeError):  # anybody may send whatever they like
                    log.warning("live.hint_dropped", reason="unreadable")
        except Exception:
            # the next attempt has a channel of its own
            with contextlib.suppress(Exception):
                await layer.group_discard(events.GROUP, channel)
            raise

    async def _poll_for_ever(self) -> None:
        while True:
            await asyncio.sleep(bounds.SLOW_POLL_SECONDS * 0.9)
            self._hint(self._views)
            views = [view for group in self._views.values() for view in group]
            if not views:
                continue
            try:
                valid = await in_thread(
                    credentials.still_valid, {view.credential for view in views}
                )
            except Exception as error:  # asked again at the next poll
                log.warning("live.not_checked", exc_info=error)
                continue
            for view in views:
                if view.credential not in valid:
                    self._close(view, CLOSED_NOT_SIGNED_IN)

    def _hint(self, conversation_ids: Iterable[int]) -> None:
        ours = self._views.keys() & set(conversation_ids)
        if ours:
            self._due |= ours
            self._wake.set()

    # --- Reading ---

    async def _read_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = loop.time()
            due, self._due = self._due, set()
            try:
                async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                    await self._read(due)
                self._failures = 0
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._due |= due & self._views.keys()
                self._wake.set()
                await self._lost(error)
            except Exception as error:  # one bad row must not end the view of all
                log.error("live.failed", exc_info=error)
                await asyncio.sleep(LAYER_RETRY_SECONDS)
            await asyncio.sleep(max(0.0, TICK_SECONDS - (loop.time() - began)))

    async def _read(self, due: set[int]) -> None:
        places: dict[Place, list[View]] = defaultdict(list)
        for conversation_id in due:
            for view in self._views.get(conversation_id, ()):
                if view.cursor is not None:
                    places[(*view.place, view.cursor)].append(view)
        if places:
            await self._show_changes(places)
        # a view that has something left to read first is asked for again when it has
        unshown = [view for view in self._unshown if not view.outbox]
        if unshown:
            await self._show_snapshots(unshown)

    async def _show_changes(self, places: dict[Place, list[View]]) -> None:
        watched = [Watched(*place) for place in places]
        rows = await self._changes(watched)

        def build() -> dict[int, Shown | None]:
            return {row[0]: _shown_change(row[1:], watched[row[0] - 1]) for row in rows}

        heavy = any(row[-1] is not None for row in rows)
        built = await self._off_loop(build) if heavy else build()
        for place, views in enumerate(places.values(), 1):
            for view in views:
                if place not in built:
                    self._close(view, CLOSED_NOT_FOUND)
                elif (shown := built[place]) is None:
                    view.cursor = None
                    self._unshown.add(view)
                else:
                    view.put(*shown)

    async def _changes(self, watched: Sequence[Watched]) -> list[tuple[Any, ...]]:
        """Return a row for each place there still is, each read by one statement: by the whole
        one where more than text is new."""
        rows = await self._rows(projection.TEXTS, projection.changes_parameters(watched))
        moved = [row[0] for row in rows if row[1] > watched[row[0] - 1].cursor.revision]
        if not moved:
            return rows
        whole = await self._rows(
            projection.changes_statement(),
            projection.changes_parameters([watched[place - 1] for place in moved]),
        )
        still = set(moved)
        return [
            *(row for row in rows if row[0] not in still),
            *((moved[row[0] - 1], *row[1:]) for row in whole),
        ]

    async def _show_snapshots(self, views: list[View]) -> None:
        groups: dict[tuple[int, int], list[View]] = defaultdict(list)
        for view in views:
            groups[view.place].append(view)
        places = list(groups)[:SNAPSHOTS_PER_TICK]
        if len(places) < len(groups):
            self._wake.set()
        rows = await self._rows(
            projection.snapshots_statement(), projection.snapshots_parameters(places)
        )

        def build() -> dict[int, Shown | None]:
            return {place: _shown_snapshot(text, places[place - 1][0]) for place, text in rows}

        built = await self._off_loop(build)
        for place, pair in enumerate(places, 1):
            for view in groups[pair]:
                self._unshown.discard(view)
                if place not in built:
                    self._close(view, CLOSED_NOT_FOUND)
                elif (shown := built[place]) is None:
                    self._close(view, CLOSED_BY_FAILURE)
                else:
                    view.put(*shown)
                    # live text that was too long for the snapshot, and what came since
                    self._hint([view.conversation_id])

    async def _off_loop(self, build: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._renderer, build)

    def _close(self, view: View, code: int) -> None:
        view.close(code)
        self.leave(view)

    # --- The connection ---

    async def _rows(
        self, statement: LiteralString, parameters: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = await _connect()
        # Unprepared: a generic plan would not know how many places are asked for.
        cursor = await self._connection.execute(statement, parameters, prepare=False)
        return await cursor.fetchall()

    async def _lost(self, error: Exception) -> None:
        if not self._failures:
            log.warning("live.unavailable", subscribers=self.view_count, exc_info=error)
        pause = RECONNECT_SECONDS[min(self._failures, len(RECONNECT_SECONDS) - 1)]
        self._failures += 1
        await self._disconnect()
        await asyncio.sleep(pause)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


def _shown_change(row: Sequence[Any], watched: Watched) -> Shown | None:
    """Return what shows a change; None where a snapshot has to. One bad row shows nothing."""
    try:
        return frames.change_frames(projection.read_change(row), watched.cursor)
    except Exception as error:  # the others' views go on
        log.error("live.failed", conversation_id=watched.conversation_id, exc_info=error)
        return [], watched.cursor


def _shown_snapshot(text: str, conversation_id: int) -> Shown | None:
    """Return what shows a conversation, None when it cannot be shown."""
    try:
        return frames.snapshot_frames(projection.read_snapshot(text))
    except Exception as error:  # the others' views go on
        log.error("live.failed", conversation_id=conversation_id, exc_info=error)
        return None


async def _connect() -> psycopg.AsyncConnection[tuple[Any, ...]]:
    own = {"autocommit": True, "application_name": "holdfast live"}
    return await psycopg.AsyncConnection.connect(**{**session_parameters(), **own})


_reader: Reader | None = None
_loop: asyncio.AbstractEventLoop | None = None


def start() -> Reader:
    """Return this event loop's reader, started if it was not."""
    global _reader, _loop
    loop = asyncio.get_running_loop()
    if _reader is None or _loop is not loop:
        _reader, _loop = Reader(), loop
        _reader.start()
    return _reader


async def stop() -> None:
    """End this event loop's reader."""
    global _reader, _loop
    reader, _reader, _loop = _reader, None, None
    if reader is not None:
        await reader.stop()
