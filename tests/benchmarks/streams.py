"""Hundreds of live turns in one worker process, each streaming from a model.

Everything is the product's: a Celery worker, its TurnHost, the responses adapter over HTTP, the
text log. The model is `tests.benchmarks.model`; every delta says when it was sent, and the
server says when its chunk was committed. A bare aiohttp client reads the same frames from the
same service in turns with the worker.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.db import connection

from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import (
    ServerCounts,
    backend_pids,
    cpu_seconds,
    median,
    percentile,
    server_counts,
    spread,
)
from tests.benchmarks.report import Line, at_most, exactly
from tests.factories import ConversationFactory, UserFactory
from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until
from tests.support.worker import Worker
from turns.models import Message, Turn
from turns.transitions import admit_turn

PER_SECOND: Final = 10
DELTA_BYTES: Final = 24
# streams are opened, and caches warmed, before anything is counted
WARM_SECONDS: Final = 2.0
PER_PERSON: Final = 20
MEMBERS: Final = (500, 100)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of the worker saw, over its counted seconds."""

    turns: int
    deltas: int
    seconds: float
    worker_cpu: float
    server_cpu: float
    counts: ServerCounts
    halves: tuple[float, float]
    delays: list[float]
    catch_up_seconds: float
    differing: int

    @property
    def micros(self) -> float:
        """The worker's processor time for one delta, in millionths of a second."""
        return self.worker_cpu / self.deltas * 1e6


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return what 500 and 100 turns cost."""
    seconds, rounds = (4.0, 1) if quick else (16.0, 3)
    model = ChildProcess(
        "tests.benchmarks.model", environment=_environment(place), log=_log(place)
    )
    url = f"http://127.0.0.1:{model.expect('listening')['port']}/v1"
    worker = Worker(
        {**_environment(place), "LLM_API": "responses", "LLM_BASE_URL": url}, place.directory
    )
    bench = _Streams(place, model, worker, url, seconds)
    try:
        worker.start()
        bare: list[float] = []
        full: list[Round] = []
        for _ in range(rounds):
            bare.append(bench.bare(MEMBERS[0]))
            full.append(bench.worker(MEMBERS[0]))
        few = [bench.worker(MEMBERS[1]) for _ in range(rounds)]
    finally:
        worker.kill()
        model.close()
    return _lines(bare, full, few)


def _lines(bare: list[float], full: list[Round], few: list[Round]) -> list[Line]:
    delays = [delay * 1000 for one in full for delay in one.delays]
    micros = [one.micros for one in full]
    many, hundred = MEMBERS
    commits, fewer = (
        median([one.counts.commits / one.seconds for one in rounds]) for rounds in (full, few)
    )
    return [
        at_most(
            f"{many} turns x {PER_SECOND}/s: sent to committed, p99",
            percentile(delays, 0.99),
            250,
            " ms",
            digits=0,
        ),
        Line(
            f"{many} turns x {PER_SECOND}/s: sent to committed, median and most",
            f"{median(delays):.0f} ms, {max(delays):.0f} ms",
        ),
        Line(
            "when the model pauses, the last delta is seen committed after",
            spread([one.catch_up_seconds * 1000 for one in full], " ms", digits=0),
        ),
        Line("deltas a second", f"{median([o.deltas / o.seconds for o in full]):,.0f}"),
        exactly(
            "answers that differ from what was sent", sum(o.differing for o in full + few), 0
        ),
        at_most(
            "worker's processor time per delta ÷ bare aiohttp client",
            median(micros) / median(bare),
            3.0,
        ),
        Line(
            "worker, processor time per delta",
            f"{median(micros):.0f} µs ({spread(micros, digits=0)})",
        ),
        Line(
            "bare aiohttp client, processor time per delta",
            f"{median(bare):.0f} µs ({spread(bare, digits=0)})",
        ),
        Line(
            "PostgreSQL, processor time per delta",
            f"{median([o.server_cpu / o.deltas * 1e6 for o in full]):.0f} µs",
        ),
        at_most(f"commits a second, {many} turns ÷ {hundred} turns", commits / fewer, 1.2),
        Line(
            f"commits a second with {many} turns, with {hundred}", f"{commits:.0f}, {fewer:.0f}"
        ),
        at_most(
            "log bytes per delta, second half ÷ first half",
            median([o.halves[1] / o.halves[0] for o in full]),
            1.2,
        ),
        Line(
            "log bytes per delta of 24 bytes",
            f"{median([o.counts.log_bytes / o.deltas for o in full]):.0f}",
        ),
    ]


class _Streams:
    """The model, the worker, and what is asked of them."""

    def __init__(
        self, place: Place, model: ChildProcess, worker: Worker, url: str, seconds: float
    ) -> None:
        self._place, self._model, self._worker = place, model, worker
        self._url, self._seconds = url, seconds
        self._asked = 0

    def bare(self, streams: int) -> float:
        """Return the bare client's processor time per delta, in millionths of a second."""
        self._expect(streams)
        client = ChildProcess(
            "tests.benchmarks.bare", f"{self._url}/responses", str(streams),
            environment=_environment(self._place), log=_log(self._place),
        )  # fmt: skip
        try:
            self._model.expect("ready")
            deltas, cpu = self._go(client.pid)
            self._model.say("stop")
            self._model.expect("stopped")
            self._model.say("finish")
            client.expect("read")
        finally:
            client.close()
        return cpu / deltas * 1e6

    def worker(self, turns: int) -> Round:
        """Return what the worker saw for so many turns at once."""
        self._expect(turns)
        asked = self._ask(turns)
        for turn in asked:
            self._worker.hint(turn.pk)
        self._model.expect("ready", seconds=120.0)
        _checkpoint()
        self._model.say("go")
        time.sleep(WARM_SECONDS)
        servers = [self._place.server_pid, *backend_pids()]
        marks = [self._mark(servers)]
        for _ in range(2):
            time.sleep(self._seconds / 2)
            marks.append(self._mark(servers))
        self._model.say("stop")
        sent = self._model.expect("stopped")["deltas"]
        stopped = time.monotonic()
        wait_until(lambda: _stored_deltas() == sent, "every delta is committed")
        catch_up = time.monotonic() - stopped
        delays = _delays(after=marks[0].wall, until=marks[-1].wall)
        differing = self._finish(asked)
        first, middle, last = marks
        halves = (
            (middle.counts.log_bytes - first.counts.log_bytes) / (middle.deltas - first.deltas),
            (last.counts.log_bytes - middle.counts.log_bytes) / (last.deltas - middle.deltas),
        )
        return Round(
            turns=turns,
            deltas=last.deltas - first.deltas,
            seconds=last.at - first.at,
            worker_cpu=last.worker_cpu - first.worker_cpu,
            server_cpu=last.server_cpu - first.server_cpu,
            counts=last.counts.since(first.counts),
            halves=halves,
            delays=delays,
            catch_up_seconds=catch_up,
            differing=differing,
        )

    def _ask(self, turns: int) -> list[Turn]:
        asked = []
        # what is asked for here is not what is measured
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = off")
        for number in range(turns):
            if number % PER_PERSON == 0:
                person = UserFactory.create()
            conversation = ConversationFactory.create(owner=person)
            self._asked += 1
            asked.append(admit_turn(person.pk, conversation.pk, f"question {self._asked}").turn)
        return asked

    def _expect(self, streams: int) -> None:
        self._model.say("expect", streams=streams, per_second=PER_SECOND, bytes=DELTA_BYTES)

    def _go(self, pid: int) -> tuple[int, float]:
        self._model.say("go")
        time.sleep(WARM_SECONDS)
        deltas, cpu = self._count(), cpu_seconds(pid)
        time.sleep(self._seconds)
        return self._count() - deltas, cpu_seconds(pid) - cpu

    def _count(self) -> int:
        self._model.say("count")
        return int(self._model.expect("count")["deltas"])

    def _mark(self, servers: list[int]) -> _Mark:
        return _Mark(
            at=time.monotonic(),
            wall=time.time(),
            deltas=self._count(),
            worker_cpu=cpu_seconds(self._worker.pid),
            server_cpu=cpu_seconds(*servers),
            counts=server_counts(),
        )

    def _finish(self, asked: list[Turn]) -> int:
        self._model.say("finish")
        texts = self._model.expect("finished")["texts"]
        wait_until(lambda: not Turn.objects.open().exists(), "every turn ended", seconds=120.0)
        answers = dict(
            Message.objects.filter(
                role="assistant", answered_by__state="completed"
            ).values_list("answered_by__user_message__text", "digest")
        )
        questions = [f"question {self._asked - n}" for n in range(len(asked))]
        return sum(texts[question] != answers.get(question) for question in questions)


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    wall: float
    deltas: int
    worker_cpu: float
    server_cpu: float
    counts: ServerCounts


def _stored_deltas() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(sum(length(text)), 0) FROM turns_textchunk")
        return int(cursor.fetchone()[0]) // DELTA_BYTES


def _delays(*, after: float, until: float) -> list[float]:
    """Return for each delta sent in between the seconds from its sending to its commit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT text, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 "
            "FROM turns_textchunk"
        )
        rows: list[tuple[str, float]] = cursor.fetchall()
    return [
        committed - sent
        for text, committed in rows
        for at in range(0, len(text), DELTA_BYTES)
        if after <= (sent := float(text[at : text.index(";", at)])) <= until
    ]


def _checkpoint() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")


def _environment(place: Place) -> dict[str, Any]:
    return {**os.environ, **place.environment}


def _log(place: Place) -> Path:
    return place.directory / "processes.log"
