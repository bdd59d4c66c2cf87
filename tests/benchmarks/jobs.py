"""No-op jobs and five-step jobs: Holdfast, plain SQL and other queues, in one interleaved run.

A round runs every contender once, in random order, each in a fresh process of its own on one
server. Its tables are empty, it is warmed up, then all its jobs appear with one commit, and the
clock runs until the server commits the end of the last. Ratios compare medians over the rounds.
The floor claims and finishes by id with one UPDATE each, a transaction each, in one session
(`jobs_floor`); peers run their own workers with their own claims (`peers`).

The goals were set where the floor did 1,400 jobs a second. Where the disk is faster the floors
and Holdfast run once more while the server waits before each flush (`commit_delay`), as long as
brings the floor there: what a commit costs decides how much all else weighs.

Transactions are what the server counts over a life, less those of a life without jobs; the
log's bytes are those written while the jobs ran.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from django.db import connection

from tests.benchmarks import jobs_fill
from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import ServerCounts, median, server_counts
from tests.benchmarks.peers.environment import interpreter
from tests.benchmarks.report import Line, at_least, at_most
from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until

WARM_UP_JOBS: Final = 60
FLOOR: Final = "floor"
FLOOR_OF_STEPS: Final = "floor5"
FLOOR_OF_WRITES: Final = "floor10"
FLOOR_OF_READS: Final = "floor6"
ONE_BY_ONE: Final = (FLOOR, "holdfast")
FIVE_STEPS: Final = (
    FLOOR_OF_STEPS, FLOOR_OF_WRITES, FLOOR_OF_READS, "holdfast_writes", "holdfast_reads"
)  # fmt: skip
# Where the goals were set, and how long the server is tried to wait until the floor is there.
GOALS_FLOOR_PER_SECOND: Final = 1_400
COMMIT_DELAYS_MICROSECONDS: Final = (0, 1, 20, 40, 60, 90, 120, 160, 200, 250, 300)
TRIALS: Final = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """One line of the table: a process and how many jobs it does."""

    name: str
    title: str
    module: str
    arguments: tuple[str, ...]
    jobs: int
    clear: str
    is_peer: bool = False
    floor: str = FLOOR


@dataclass(slots=True)
class Seen:
    """What the rounds gave, a value each."""

    seconds: list[float] = field(default_factory=list)  # per job
    log_bytes: list[float] = field(default_factory=list)  # per job
    transactions: list[float] = field(default_factory=list)  # per job

    @property
    def rate(self) -> float:
        """Jobs a second, the median."""
        return 1 / median(self.seconds)

    def described(self, floor: float) -> str:
        """Return the rate, as part of the floor's too, its range, the log, the transactions."""
        rates = sorted(1 / seconds for seconds in self.seconds)
        return (
            f"{self.rate / floor:.2f}: {self.rate:,.0f}/s "
            f"({rates[0]:,.0f} to {rates[-1]:,.0f}), "
            f"{median(self.log_bytes):,.0f} B, {median(self.transactions):.2f} transactions"
        )


def _floor(name: str, title: str, kind: str, jobs: int, floor: str = FLOOR) -> Contender:
    arguments = (json.dumps(jobs_fill.PAYLOAD), kind)
    return Contender(name, title, "jobs_floor", arguments, jobs, "SELECT 1", floor=floor)


def _ours(name: str, title: str, kind: str, jobs: int, floor: str = FLOOR) -> Contender:
    return Contender(name, title, "jobs_holdfast", (kind,), jobs, jobs_fill.CLEAR, floor=floor)


@dataclass(frozen=True, slots=True)
class Peer:
    """A module of `peers`, and what empties its tables."""

    module: str
    clear: str

    def __call__(
        self, name: str, title: str, jobs: int, *arguments: int, floor: str = FLOOR
    ) -> Contender:
        """Return it as a contender, with the numbers its module takes after the payload's."""
        words = ("work", str(jobs_fill.PAYLOAD_BYTES), *(str(a) for a in arguments))
        module = f"peers.{self.module}"
        return Contender(
            name, title, module, words, jobs, self.clear, is_peer=True, floor=floor
        )


_PGQUEUER: Final = Peer(
    "pgqueuer_worker", "TRUNCATE pgqueuer, pgqueuer_log, pgqueuer_statistics"
)
_PROCRASTINATE: Final = Peer("procrastinate_worker", "TRUNCATE procrastinate_jobs CASCADE")
_ABSURD: Final = Peer(
    "absurd_worker",
    "TRUNCATE absurd.t_bench, absurd.r_bench, absurd.c_bench, absurd.e_bench, absurd.w_bench",
)
_DBOS: Final = Peer("dbos_worker", "TRUNCATE dbos.workflow_status CASCADE")
PEERS: Final = (_PGQUEUER, _PROCRASTINATE, _ABSURD, _DBOS)


def contenders(*, quick: bool) -> list[Contender]:
    """Return everybody, with fewer jobs each for a quick run."""
    n = 4 if quick else 1
    five = FLOOR_OF_STEPS
    return [
        _floor(FLOOR, "floor, one by one", "single", 2_000 // n),
        _ours("holdfast", "Holdfast, one by one", "single", 1_200 // n),
        _floor("floor8", "floor, eight sessions", "threads", 3_000 // n),
        _ours("holdfast8", "Holdfast, a worker's eight threads", "threads", 2_000 // n),
        _ours("holdfast_report", "Holdfast, with report and message", "report", 600 // n),
        _ours("holdfast10", "Holdfast, batches of 10", "batch10", 3_000 // n),
        _ours("holdfast32", "Holdfast, batches of 32", "batch32", 4_000 // n),
        _PGQUEUER("pgqueuer1", "PgQueuer, batch 1", 1_000 // n, 1),
        _PGQUEUER("pgqueuer10", "PgQueuer, batch 10", 3_000 // n, 10),
        _PROCRASTINATE("procrastinate1", "Procrastinate, one at a time", 400 // n, 1),
        _PROCRASTINATE("procrastinate10", "Procrastinate, concurrency 10", 600 // n, 10),
        _DBOS("dbos", "DBOS, unlimited", 1_000 // n, 0, 0),
        _DBOS("dbos10", "DBOS, 10 at once", 1_000 // n, 10, 0),
        _ABSURD("absurd1", "absurd-sdk, batch 1", 1_000 // n, 1, 0),
        _ABSURD("absurd10", "absurd-sdk, batch 10", 1_000 // n, 10, 0),
        _floor(five, "five steps: floor of 7 commits", "steps", 600 // n, five),
        _floor(FLOOR_OF_WRITES, "five steps: floor of 10 commits", "writes", 400 // n, five),
        _floor(FLOOR_OF_READS, "five steps: floor of 6 commits", "reads", 600 // n, five),
        _ours("holdfast_writes", "five steps: Holdfast, one by one", "writes", 200 // n, five),
        _ours("holdfast_reads", "five steps: Holdfast, side by side", "reads", 300 // n, five),
        _DBOS("dbos_steps", "five steps: DBOS, 10 at once", 200 // n, 10, 5, floor=five),
        _ABSURD("absurd_steps", "five steps: absurd-sdk", 300 // n, 1, 5, floor=five),
    ]


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return the table."""
    everybody = contenders(quick=quick)
    race = _Race(place, everybody, PEERS)
    race.install()
    slower = _Race(place, [one for one in everybody if one.name in ONE_BY_ONE + FIVE_STEPS])
    slower.install()
    delay = _delay_of_the_goals(place)
    for _ in range(2 if quick else 7):
        race.round()
        if delay:
            with _commits_take_longer(delay):
                slower.round()
    return [*_lines(race), *(_slower_lines(slower) if delay else ())]


def _delay_of_the_goals(place: Place) -> int:
    """Return how many microseconds the server has to wait before each flush so that the floor
    does what it did where the goals were set; 0 where it is no faster."""
    for delay in COMMIT_DELAYS_MICROSECONDS:
        floor = _Race(place, [_floor(FLOOR, "floor", "single", 500)])
        floor.install()
        with _commits_take_longer(delay):
            for _ in range(TRIALS):
                floor.round()
        if floor.seen[FLOOR].rate <= GOALS_FLOOR_PER_SECOND:
            break
    return delay


@contextmanager
def _commits_take_longer(microseconds: int) -> Iterator[None]:
    """Let the server wait before it flushes a commit, as a slower disk would let it wait."""
    _execute(f"ALTER SYSTEM SET commit_delay = {microseconds}")
    _execute("ALTER SYSTEM SET commit_siblings = 0")
    _execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        _execute("ALTER SYSTEM RESET commit_delay")
        _execute("ALTER SYSTEM RESET commit_siblings")
        _execute("SELECT pg_reload_conf()")


class _Race:
    def __init__(
        self, place: Place, everybody: Sequence[Contender], peers: Sequence[Peer] = ()
    ) -> None:
        self._place = place
        self.everybody = everybody
        self._peers = peers
        self.seen = {contender.name: Seen() for contender in everybody}
        self._idle: dict[str, int] = {}
        self._peers_python = interpreter()
        self._log = place.directory / "jobs.log"
        self._environment = {**os.environ, **place.environment}

    def install(self) -> None:
        """Let each peer make its tables; learn what a life without jobs costs."""
        for peer in self._peers:
            process = self._start(f"peers.{peer.module}", ("install",), is_peer=True)
            assert process.wait(seconds=120) == 0, self._log.read_text()[-4_000:]
            process.close()
        for contender in self.everybody:
            _execute(contender.clear)
            before = self._counts()
            self._live(contender, jobs=0)
            self._idle[contender.name] = self._counts().since(before).commits

    def round(self) -> None:
        """Run everybody once, in random order."""
        for contender in random.sample(self.everybody, len(self.everybody)):
            _execute(contender.clear)
            _execute("CHECKPOINT")
            before = self._counts()
            done = self._live(contender, jobs=contender.jobs)
            commits = self._counts().since(before).commits - self._idle[contender.name]
            seen = self.seen[contender.name]
            seen.seconds.append(done["seconds"] / contender.jobs)
            seen.log_bytes.append(done["log_bytes"] / contender.jobs)
            seen.transactions.append(commits / (contender.jobs + WARM_UP_JOBS))

    def _live(self, contender: Contender, *, jobs: int) -> dict[str, float]:
        process = self._start(contender.module, contender.arguments, is_peer=contender.is_peer)
        done: dict[str, float] = {}
        try:
            process.expect("ready", seconds=60)
            for some in (WARM_UP_JOBS, jobs) if jobs else ():
                process.say("work", jobs=some)
                done = process.expect("done", seconds=180)
            process.say("stop")
            process.wait(seconds=60)
        finally:
            process.close()
        return done

    def _start(self, module: str, arguments: tuple[str, ...], *, is_peer: bool) -> ChildProcess:
        python = {"python": self._peers_python} if is_peer else {}
        return ChildProcess(
            f"tests.benchmarks.{module}", self._place.url, *arguments,
            environment=self._environment, log=self._log, **python,
        )  # fmt: skip

    @staticmethod
    def _counts() -> ServerCounts:
        """Return the counts once every other session has ended and told its own."""
        wait_until(lambda: _sessions() == 0, "the sessions of a process have ended")
        time.sleep(0.05)  # time: counts are told a moment after their process is off the list
        return server_counts()


def _lines(race: _Race) -> Iterator[Line]:
    seen = race.seen
    floor, ours = seen[FLOOR], seen["holdfast"]
    log_bytes = median(ours.log_bytes) / median(floor.log_bytes)
    yield at_least("one by one: Holdfast ÷ floor", ours.rate / floor.rate, 0.7)
    yield at_most("one by one: its log bytes ÷ floor's", log_bytes, 1.5)
    yield at_most("one by one: its transactions a job", median(ours.transactions), 2.2)
    for size in (10, 32):
        rate = seen[f"holdfast{size}"].rate / floor.rate
        yield at_least(f"batches of {size}: Holdfast ÷ floor one by one", rate, 3)
    yield from _five_steps(seen, "")
    for contender in race.everybody:
        its = seen[contender.name]
        yield Line(contender.title, its.described(seen[contender.floor].rate))


def _five_steps(seen: Mapping[str, Seen], where: str) -> Iterator[Line]:
    for calls, how, own, commits in (
        ("holdfast_writes", "one by one", FLOOR_OF_WRITES, "its 10 commits"),
        ("holdfast_reads", "side by side", FLOOR_OF_READS, "its 6 commits"),
    ):
        rate = seen[calls].rate
        for name, which in ((FLOOR_OF_STEPS, "7 commits"), (own, commits)):
            what = f"five steps {how}{where}: Holdfast ÷ floor of {which}"
            yield at_least(what, rate / seen[name].rate, 0.6)


def _slower_lines(race: _Race) -> Iterator[Line]:
    seen = race.seen
    where = ", commits as long as for the goals"
    rate = seen["holdfast"].rate / seen[FLOOR].rate
    yield at_least(f"one by one{where}: Holdfast ÷ floor", rate, 0.7)
    yield from _five_steps(seen, where)
    for contender in race.everybody:
        its = seen[contender.name]
        yield Line(f"{contender.title}{where}", its.described(seen[contender.floor].rate))


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def _sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])
