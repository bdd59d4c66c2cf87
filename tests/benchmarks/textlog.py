"""Durable text: the text log against a bare INSERT of the same rows in the same ticks.

Streams hand text over at a steady pace; every 50 ms one statement writes what has gathered.
The bare writer does it with one INSERT into a table of the same columns and key, without
fence, locks or triggers, on the same kind of connection. The two take turns. Then both
statements are sent back to back, as fast as they are answered: between two ticks a statement
waits 50 ms and finds the processor's caches cold, which costs the longer one more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString, Protocol, cast
from uuid import UUID

import psycopg
from django.db import connection as django_connection
from psycopg import AsyncConnection

from recovery.fences import Fence
from tests.benchmarks import fill
from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import cpu_seconds, median, percentile, spread
from tests.benchmarks.report import Line, at_most
from tests.factories import RuntimeFactory, UserFactory
from turns import bounds, textlog
from turns.models import Turn
from turns.textlog import TextLog

FIRST: Final = 1_000
DELTA: Final = "five byte words and more "
BARE_TABLE: Final = """
    CREATE TABLE bare_chunk (turn_id bigint NOT NULL, seq integer NOT NULL,
        generation integer NOT NULL, text text NOT NULL, PRIMARY KEY (turn_id, seq))
"""
BARE: Final[LiteralString] = """
    INSERT INTO bare_chunk (turn_id, seq, generation, text)
    SELECT * FROM unnest(%(ids)b::bigint[], %(seqs)b::int[], %(generations)b::int[],
        %(texts)b::text[])
"""


@dataclass(slots=True)
class Seen:
    """What one round of one writer took."""

    statement_ms: list[float] = field(default_factory=list)
    backend: int = 0
    server_ms_per_tick: float = 0.0
    core_share: float = 0.0


class Timed:
    """A connection that notes how long each statement took, its commit included."""

    def __init__(self, connection: AsyncConnection, took: list[float]) -> None:
        self._connection, self._took = connection, took

    async def execute(self, *statement: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return await self._connection.execute(*statement, **options)
        finally:
            self._took.append((time.perf_counter() - began) * 1000)

    async def close(self) -> None:
        await self._connection.close()


class Writer(Protocol):
    """Takes text and makes it durable in ticks."""

    async def write(self, fence: Fence, text: str) -> None: ...


class BareWriter:
    """One INSERT a tick, and nothing else."""

    def __init__(self, connection: Timed) -> None:
        self._connection = connection
        self._held: dict[int, list[str]] = {}
        self._seqs: dict[int, int] = {}

    async def write(self, fence: Fence, text: str) -> None:
        self._held.setdefault(fence.pk, []).append(text)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(bounds.FLUSH_SECONDS)
            held, self._held = self._held, {}
            if not held:
                continue
            for pk in held:
                self._seqs[pk] = self._seqs.get(pk, 0) + 1
            rows = {
                "ids": list(held),
                "seqs": [self._seqs[pk] for pk in held],
                "generations": [1] * len(held),
                "texts": ["".join(texts) for texts in held.values()],
            }
            await self._connection.execute(BARE, rows, prepare=False)


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return the ratios for 100 streams, and for as many as a worker serves."""
    owner = RuntimeFactory.create().pk
    with django_connection.cursor() as cursor:
        cursor.execute(BARE_TABLE)
    rounds, seconds = (1, 2.0) if quick else (4, 8.0)
    lines = []
    for streams, per_second in ((100, 50), (500, 20)):
        bare: list[Seen] = []
        log: list[Seen] = []
        for _ in range(rounds):
            bare.append(_round(_bare, streams, owner, Pace(per_second, seconds)))
            log.append(_round(_log, streams, owner, Pace(per_second, seconds)))
        lines += _lines(f"{streams} streams x {per_second}/s", bare, log)
        lines.append(_back_to_back(place, streams, owner, 20 if quick else 300))
    return lines


def _lines(what: str, bare: list[Seen], log: list[Seen]) -> list[Line]:
    def statement(rounds: list[Seen]) -> float:
        return median([ms for one in rounds for ms in one.statement_ms])

    def server(rounds: list[Seen]) -> float:
        return median([one.server_ms_per_tick for one in rounds])

    slowest = percentile([ms for one in log for ms in one.statement_ms], 0.99)
    return [
        at_most(
            f"{what}: statement and commit ÷ bare insert", statement(log) / statement(bare), 2.0
        ),
        at_most(
            f"{what}: the server's processor time ÷ bare insert",
            server(log) / server(bare),
            2.0,
        ),
        Line(
            f"{what}: statement and commit, median (bare), p99",
            f"{statement(log):.1f} ms ({statement(bare):.1f} ms), {slowest:.0f} ms",
        ),
        Line(
            f"{what}: server and writer together",
            f"{spread([one.core_share * 100 for one in log], ' %', digits=0)} of a core",
        ),
    ]


def _back_to_back(place: Place, streams: int, owner: UUID, times: int) -> Line:
    """Return how much longer the log's statement takes when nothing else happens."""
    fences = _fresh(streams, owner)
    rows: dict[str, list[object]] = {
        "ids": [fence.pk for fence in fences],
        "generations": [fence.generation for fence in fences],
        "tokens": [fence.token for fence in fences],
        "texts": [DELTA * 2] * streams,
    }
    took: dict[LiteralString, list[float]] = {textlog.FLUSH: [], BARE: []}
    with psycopg.connect(place.url, autocommit=True) as session:
        for seq in range(1, times + 1):
            rows["seqs"] = [seq] * streams
            for statement, times_taken in took.items():
                began = time.perf_counter()
                session.execute(statement, rows, prepare=False)
                times_taken.append(time.perf_counter() - began)
    ratio = median(took[textlog.FLUSH]) / median(took[BARE])
    return at_most(f"{streams} streams, back to back: statement and commit ÷ bare", ratio, 2.0)


Drive = Callable[[list[Fence], "Pace", Seen], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast each stream grows, and for how long."""

    per_second: int
    seconds: float


def _round(writer: Drive, streams: int, owner: UUID, pace: Pace) -> Seen:
    fences = _fresh(streams, owner)
    seen = Seen()
    asyncio.run(writer(fences, pace, seen))
    return seen


def _fresh(streams: int, owner: UUID) -> list[Fence]:
    """Return the fences of new running turns; nothing else is in the tables."""
    fill.empty()
    with django_connection.cursor() as cursor:
        cursor.execute("TRUNCATE bare_chunk")
    fill.running(
        streams, first=FIRST, person=UserFactory.create().pk, owners=[owner], asked=False
    )
    fill.settle_down()
    fences = [
        Fence(pk, generation, cast(UUID, token))
        for pk, generation, token in Turn.objects.order_by("pk").values_list(
            "pk", "generation", "claim_token"
        )
    ]
    django_connection.close()
    return fences


async def _log(fences: list[Fence], pace: Pace, seen: Seen) -> None:
    backend = await textlog.connect()

    async def connect() -> AsyncConnection:
        return cast(AsyncConnection, Timed(backend, seen.statement_ms))

    log = TextLog(connect, lambda _: None)
    for fence in fences:
        log.open(fence, fence.pk)
    log.start()
    seen.backend = backend.info.backend_pid
    await _drive(log, fences, pace, seen)
    for fence in fences:
        await log.flushed(fence)
    await log.stop()


async def _bare(fences: list[Fence], pace: Pace, seen: Seen) -> None:
    backend = await textlog.connect()
    writer = BareWriter(Timed(backend, seen.statement_ms))
    task = asyncio.create_task(writer.run())
    seen.backend = backend.info.backend_pid
    await _drive(writer, fences, pace, seen)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await backend.close()


async def _drive(writer: Writer, fences: list[Fence], pace: Pace, seen: Seen) -> None:
    """Hand text over at an even pace: in each hundredth of a second to some of the streams."""
    loop = asyncio.get_running_loop()
    due, turn = 0.0, 0
    began, used, own = loop.time(), cpu_seconds(seen.backend), time.process_time()
    for slot in range(1, int(pace.seconds * 100) + 1):
        due += len(fences) * pace.per_second / 100
        while due >= 1:
            due -= 1
            await writer.write(fences[turn % len(fences)], DELTA)
            turn += 1
        await asyncio.sleep(max(0.0, began + slot / 100 - loop.time()))
    used = cpu_seconds(seen.backend) - used
    seen.server_ms_per_tick = used * 1000 / max(1, len(seen.statement_ms))
    seen.core_share = (used + time.process_time() - own) / (loop.time() - began)
