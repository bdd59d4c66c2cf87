"""The group-committing writer of live text: one statement a tick for all turns of a process.

Text becomes a row before anyone sees it. A piece of text gets its seq once and keeps it through
every attempt, so that after a lost connection the stored rows can be read back and compared:
either a seq holds exactly this text, or it was never written (design section 3, "Text is a
log").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, LiteralString

import psycopg
import structlog
from psycopg import AsyncConnection

from recovery.bounds import cut_utf8, storable
from recovery.connections import session_name, session_parameters
from recovery.errors import ErrorCode, StaleFence
from recovery.fences import Fence
from recovery.probes import areach
from turns import bounds
from turns.pending_text import PendingText, Piece, TextNotStored

log = structlog.get_logger()

# One statement carries at most this much: 500 turns that all burst at once still fit a few
# ticks.
BATCH_MAX_BYTES: Final = 4 * bounds.KIB * bounds.KIB
# How long a turn that holds all it may waits for the database before it gives up.
ROOM_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0)

# Locks the turns that still match and writes their text; as many rows as asked for is the usual
# answer. Sent unprepared: a generic plan joins by nested loops and is twice as slow at 500
# turns.
FLUSH: Final[LiteralString] = """
    WITH v AS MATERIALIZED (
        SELECT * FROM unnest(%(ids)b::bigint[], %(generations)b::int[], %(tokens)b::uuid[],
                             %(seqs)b::int[], %(texts)b::text[])
            v(turn_id, generation, token, seq, text)),
    held AS MATERIALIZED (
        SELECT t.id, t.generation, t.claim_token FROM turns_turn t
        WHERE t.id = ANY(%(ids)b::bigint[]) AND t.state = 'running'
        ORDER BY t.id FOR SHARE OF t SKIP LOCKED)
    INSERT INTO turns_textchunk (turn_id, seq, generation, text)
    SELECT v.turn_id, v.seq, v.generation, v.text FROM v
    JOIN held h ON (h.id, h.generation, h.claim_token) = (v.turn_id, v.generation, v.token)
    ORDER BY v.turn_id, v.seq
"""
# Otherwise: what was not written, as busy (somebody held the row: same seqs next tick) or lost
# (it ended, or has another owner). Text that was written and folded away since counts as lost
# too; its turn has ended. In the statement above this would cost every tick a tenth.
UNWRITTEN: Final[LiteralString] = """
    SELECT v.turn_id, v.seq, t.id IS NULL AS lost
    FROM unnest(%(ids)b::bigint[], %(generations)b::int[], %(tokens)b::uuid[], %(seqs)b::int[])
        v(turn_id, generation, token, seq)
    LEFT JOIN turns_textchunk c ON (c.turn_id, c.seq) = (v.turn_id, v.seq)
    LEFT JOIN turns_turn t ON (t.id, t.generation, t.claim_token)
                            = (v.turn_id, v.generation, v.token) AND t.state = 'running'
    WHERE c.turn_id IS NULL
"""
STORED: Final[LiteralString] = """
    SELECT c.turn_id, c.seq, c.generation, c.text FROM turns_textchunk c
    JOIN unnest(%(ids)b::bigint[], %(seqs)b::int[]) AS asked(turn_id, seq)
        ON (c.turn_id, c.seq) = (asked.turn_id, asked.seq)
"""

# What one bad value does to the statement of all turns; anything else is the database's
# trouble.
POISON: Final = (psycopg.DataError, psycopg.IntegrityError, UnicodeError)


async def connect() -> AsyncConnection:
    """Return a session of the log's own, to the same database and under the same name."""
    own = {"autocommit": True, "prepare_threshold": None, "application_name": session_name()}
    return await AsyncConnection.connect(**{**session_parameters(), **own})


class TextLog:
    """Owned by one event loop; every method is called there.

    `connect` opens a connection in autocommit mode under this runtime's name. `announce` is
    told each conversation whose text grew, after the commit and never before.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[AsyncConnection]],
        announce: Callable[[Iterable[int]], None],
        *,
        held_max_bytes: int = bounds.HELD_TEXT_MAX_BYTES,
        room_seconds: float = ROOM_SECONDS,
    ) -> None:
        self._connect = connect
        self._announce = announce
        self._held_max_bytes = held_max_bytes
        self._room_seconds = room_seconds
        self._texts: dict[int, PendingText] = {}
        self._growing: dict[int, PendingText] = {}
        self._dirty = asyncio.Event()
        self._full = asyncio.Event()
        self._connection: AsyncConnection | None = None
        self._failures = 0
        self._epoch = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write every 50 ms."""
        self._task = asyncio.create_task(self._run(), name="text log")

    async def stop(self) -> None:
        """Write no more. What is still held is gone, and was never shown to anyone."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._disconnect()

    def open(self, fence: Fence, conversation_id: int) -> None:
        """Expect text of the turn that `fence` owns."""
        if fence.pk in self._texts:
            raise ValueError(f"turn {fence.pk} is open already")
        self._texts[fence.pk] = PendingText(fence, conversation_id)

    def close(self, fence: Fence) -> None:
        """Forget the turn, and what of its text was not written."""
        text = self._texts.get(fence.pk)
        if text is not None and text.fence == fence:
            del self._texts[fence.pk]
            self._growing.pop(fence.pk, None)

    async def abandon(self, fences: Iterable[Fence]) -> None:
        """Write nothing more for these turns: the runtime that claimed them was buried.

        The connection carries the dead runtime's name, so the next one is opened anew.
        """
        for fence in fences:
            text = self._texts.get(fence.pk)
            if text is not None and text.fence == fence:
                text.fail(StaleFence())
                self._growing.pop(fence.pk, None)
        self._epoch += 1
        await self._disconnect()

    async def write(self, fence: Fence, text: str) -> None:
        """Take `text` to be written within a tick; wait while the turn holds all it may.

        Raises:
            StaleFence: the turn ended or has another owner. Nothing more is written.
            TextNotStored: the database could not be reached for longer than a turn may wait.
        """
        turn = self._turn(fence)
        rest = storable(text)
        while rest:
            part = cut_utf8(rest, bounds.CHUNK_MAX_BYTES)
            rest = rest[len(part) :]
            size = len(part.encode())
            if turn.held_bytes and turn.held_bytes + size > self._held_max_bytes:
                await self._room(turn, size)
            turn.fresh.append(part)
            turn.fresh_bytes += size
            turn.held_bytes += size
            self._growing[fence.pk] = turn
            self._dirty.set()
            if turn.fresh_bytes >= bounds.CHUNK_MAX_BYTES:
                self._full.set()

    async def flushed(self, fence: Fence) -> int:
        """Return the last seq of the turn once all its text is committed; 0 when it has none.

        Raises:
            StaleFence: the turn ended or has another owner.
            TextNotStored: its text cannot be stored.
        """
        turn = self._turn(fence)
        while turn.held_bytes:
            turn.changed.clear()
            await turn.changed.wait()
        if turn.failure is not None:
            raise turn.failure
        return turn.written

    def written(self, fence: Fence) -> int:
        """Return the last seq known to be committed."""
        text = self._texts.get(fence.pk)
        return text.written if text is not None and text.fence == fence else 0

    def _turn(self, fence: Fence) -> PendingText:
        turn = self._texts.get(fence.pk)
        if turn is None or turn.fence != fence:
            raise StaleFence
        if turn.failure is not None:
            raise turn.failure
        return turn

    async def _room(self, turn: PendingText, size: int) -> None:
        try:
            async with asyncio.timeout(self._room_seconds):
                while turn.held_bytes and turn.held_bytes + size > self._held_max_bytes:
                    turn.changed.clear()
                    await turn.changed.wait()
        except TimeoutError:
            turn.fail(TextNotStored(ErrorCode.STORAGE_UNAVAILABLE))
        if turn.failure is not None:
            raise turn.failure

    async def _run(self) -> None:
        while True:
            await self._dirty.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(bounds.FLUSH_SECONDS):
                    await self._full.wait()
            self._dirty.clear()
            self._full.clear()
            try:
                await self._tick()
            except Exception as error:  # noqa: BLE001 - every turn of the process waits for this
                await self._lost(error)
                self._dirty.set()

    async def _tick(self) -> None:
        """Write what is held, as much as one statement takes."""
        if not self._growing:
            return
        connection = await self._connected()
        batch = self._batch()
        if not batch:
            return
        try:
            written = await self._write(connection, batch)
        finally:
            self._forget_settled()
        if self._failures:
            log.info("textlog.recovered", attempts=self._failures)
            self._failures = 0
        if written:
            self._tell(written)
            await areach("turn.text_committed")

    def _batch(self) -> list[Piece]:
        batch: list[Piece] = []
        size = 0
        for turn in self._growing.values():
            turn.number()
            for piece in turn.pieces:
                if size and size + piece.size > BATCH_MAX_BYTES:
                    self._dirty.set()
                    self._full.set()
                    return batch
                size += piece.size
                batch.append(piece)
        return batch

    async def _write(self, connection: AsyncConnection, batch: list[Piece]) -> list[Piece]:
        """Return the pieces of `batch` now committed; a poison text stands alone at the end."""
        for piece in batch:
            piece.sent = True
        try:
            rows = _arrays(batch)
            cursor = await connection.execute(FLUSH, rows, prepare=False)
            refused = {}
            if cursor.rowcount != len(batch):
                cursor = await connection.execute(UNWRITTEN, rows, prepare=False)
                refused = {(row[0], row[1]): bool(row[2]) for row in await cursor.fetchall()}
        except psycopg.errors.UniqueViolation:
            # Only a statement whose end we never heard of can have written these seqs.
            return await self._compare(connection, batch)
        except POISON as error:
            return await self._isolate(connection, batch, error)
        written = []
        for piece in batch:
            lost = refused.get((piece.turn.fence.pk, piece.seq))
            if lost is None:
                piece.turn.settle(piece)
                written.append(piece)
            elif lost:
                piece.turn.fail(StaleFence())
            else:
                self._dirty.set()
        return written

    async def _isolate(
        self, connection: AsyncConnection, batch: list[Piece], error: Exception
    ) -> list[Piece]:
        if len(batch) == 1:
            turn = batch[0].turn
            log.error(
                "textlog.refused", turn_id=turn.fence.pk, seq=batch[0].seq, exc_info=error
            )
            turn.fail(TextNotStored(ErrorCode.INVALID_TEXT))
            return []
        half = _middle(batch)
        written = await self._write(connection, batch[:half])
        # No later text of a turn may pass an earlier one that is busy or was refused.
        behind = {piece.turn.fence.pk for piece in batch[:half] if piece not in written}
        rest = [piece for piece in batch[half:] if piece.turn.fence.pk not in behind]
        return written + (await self._write(connection, rest) if rest else [])

    async def _compare(
        self, connection: AsyncConnection, batch: Sequence[Piece]
    ) -> list[Piece]:
        """Read back what of `batch` is stored; what is not stays held under its seq."""
        arrays = {
            "ids": [piece.turn.fence.pk for piece in batch],
            "seqs": [piece.seq for piece in batch],
        }
        cursor = await connection.execute(STORED, arrays, prepare=False)
        stored = {(row[0], row[1]): (row[2], row[3]) for row in await cursor.fetchall()}
        written = []
        for piece in batch:
            fence = piece.turn.fence
            found = stored.get((fence.pk, piece.seq))
            if found == (fence.generation, piece.text):
                piece.turn.settle(piece)
                written.append(piece)
            elif found is not None:
                piece.turn.fail(StaleFence())
        self._dirty.set()
        return written

    async def _connected(self) -> AsyncConnection:
        """Return the connection; after a loss only once every doubtful seq was compared."""
        if self._connection is None:
            epoch = self._epoch
            connection = await self._connect()
            try:
                if epoch != self._epoch:
                    raise psycopg.OperationalError("opened under the name of a dead runtime")
                doubtful = [piece for piece in self._held() if piece.sent]
                if doubtful:
                    written = await self._compare(connection, doubtful)
                    self._forget_settled()
                    self._tell(written)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    def _tell(self, written: Iterable[Piece]) -> None:
        self._announce({piece.turn.conversation_id for piece in written})

    def _held(self) -> Iterator[Piece]:
        for turn in self._growing.values():
            yield from turn.pieces

    def _forget_settled(self) -> None:
        for turn in [turn for turn in self._growing.values() if not turn.held_bytes]:
            del self._growing[turn.fence.pk]

    async def _lost(self, error: Exception) -> None:
        if not self._failures:
            log.warning("textlog.unavailable", count=len(self._growing), exc_info=error)
        pause = RECONNECT_SECONDS[min(self._failures, len(RECONNECT_SECONDS) - 1)]
        self._failures += 1
        await self._disconnect()
        await asyncio.sleep(pause)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


def _middle(batch: Sequence[Piece]) -> int:
    """Return where to cut `batch` in two: between turns, as long as there is more than one."""
    half = len(batch) // 2
    starts = [at for at in range(1, len(batch)) if batch[at].turn is not batch[at - 1].turn]
    return min(starts, key=lambda at: abs(at - half)) if starts else half


def _arrays(batch: Iterable[Piece]) -> dict[str, list[object]]:
    rows = [(p.turn.fence, p.seq, p.text) for p in batch]
    return {
        "ids": [fence.pk for fence, _, _ in rows],
        "generations": [fence.generation for fence, _, _ in rows],
        "tokens": [fence.token for fence, _, _ in rows],
        "seqs": [seq for _, seq, _ in rows],
        "texts": [text for _, _, text in rows],
    }
