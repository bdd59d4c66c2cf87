"""Five hundred pages that watch growing answers, over real WebSockets through real uvicorn.

The text is written by the real text log in a process of its own (`tests.benchmarks.writer`):
500 turns, 10 deltas a second each, with the hints a worker sends. From commit to frame is the
time from the commit as the server recorded it to the arrival of the frame that holds the chunk.
Then every page loses its socket at once and connects again with its cursor, while text grows
on.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from django.db import connection

from config.embedded.children import start
from config.embedded.postgres import free_port
from tests.benchmarks import fill
from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import cpu_seconds, median, percentile
from tests.benchmarks.report import Line, at_most, exactly
from tests.factories import RuntimeFactory, UserFactory
from tests.support.processes import ROOT, ChildProcess
from tests.support.waiting import wait_until
from turns.bounds import SLOW_POLL_SECONDS
from turns.tokens import create_token

PAGES: Final = 500
PER_SECOND: Final = 10
FIRST: Final = 1_000
# the embedded stack's own options (config/embedded/stack.py)
SERVE: Final = (
    sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1",
    "--loop", "uvloop", "--ws", "websockets-sansio", "--lifespan", "on", "--no-access-log",
    "--no-server-header", "--ws-max-size", "65536",
)  # fmt: skip

Chunks = dict[int, list[tuple[int, float, str]]]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One chunk on one page."""

    committed: float
    arrived: float
    connected: float

    @property
    def delay_ms(self) -> float:
        """From the commit to the frame; while the page was away, from its connection."""
        return (self.arrived - max(self.committed, self.connected)) * 1000


@dataclass(frozen=True, slots=True)
class Course:
    """What happened when."""

    began_at: float
    cut_at: float
    open_seconds: float
    back_seconds: float
    core_share: float


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return what 500 pages saw, in steady state and around a reconnection of all."""
    seconds = 12.0 if quick else 40.0
    person = UserFactory.create().pk
    owner = RuntimeFactory.create().pk
    token = create_token(person)
    fill.running(PAGES, first=FIRST, person=person, owners=[owner])
    fill.settle_down()
    environment = {**os.environ, **place.environment}
    log = place.directory / "processes.log"
    port = free_port()
    web = start((*SERVE, "--port", str(port)), log=log, environment=environment, cwd=ROOT)
    writer = ChildProcess("tests.benchmarks.writer", environment=environment, log=log)
    watchers = None
    try:
        writer.expect("loaded")
        wait_until(lambda: _answers(port), "the web process answers")
        watchers = ChildProcess(
            "tests.benchmarks.watchers",
            *(f"ws://127.0.0.1:{port}", token, str(FIRST), str(PAGES)),
            environment=environment,
            log=log,
        )
        opened = watchers.expect("open")["seconds"]
        began = time.time()
        cpu = cpu_seconds(web.pid)
        writer.say("go", per_second=PER_SECOND, seconds=seconds)
        time.sleep(seconds / 2)
        cpu = cpu_seconds(web.pid) - cpu
        watchers.say("reconnect")
        storm = watchers.expect("reconnected")
        writer.expect("written", seconds=seconds + 60)
        chunks = _chunks()
        # past the slow poll: what has not come by then does not come
        time.sleep(SLOW_POLL_SECONDS + 1)
        seen = _stop(watchers, place.directory / "seen.json")
    finally:
        for process in (writer, watchers):
            if process is not None:
                process.close()
        web.kill()
        web.wait()
    course = Course(began, storm["at"], opened, storm["seconds"], cpu / (seconds / 2))
    return _lines(chunks, seen, course)


def _lines(chunks: Chunks, seen: list[dict[str, Any]], course: Course) -> list[Line]:
    wrong = sum(
        page["text"] != "".join(text for _, _, text in chunks[page["conversation"]])
        for page in seen
    )
    of_pages = [list(_arrivals(page, chunks[page["conversation"]])) for page in seen]
    arrivals = [one for of_page in of_pages for one in of_page]
    cut = course.cut_at
    steady = [a.delay_ms for a in arrivals if course.began_at + 1 < a.committed < cut - 0.5]
    around = [a.delay_ms for a in arrivals if cut - 0.5 <= a.committed < cut + 5]
    after = [a.delay_ms for a in arrivals if cut + 5 <= a.committed]
    away = [min(a.arrived for a in of_page if a.connected > cut) - cut for of_page in of_pages]
    return [
        at_most(
            f"{PAGES} pages, {PAGES} growing turns x {PER_SECOND}/s: commit to frame, p99",
            percentile(steady, 0.99),
            150,
            " ms",
            digits=0,
        ),
        Line("commit to frame, median and most", _two(median(steady), max(steady))),
        exactly("pages whose text differs from PostgreSQL's", wrong, 0),
        Line("frames shown", f"{sum(len(page['frames']) for page in seen):,}"),
        Line("web process", f"{course.core_share * 100:.0f} % of a core"),
        at_most(
            f"all {PAGES} reconnect: commit (or connection) to frame within 5 s, p99",
            percentile(around, 0.99),
            150,
            " ms",
            digits=0,
        ),
        Line("the same, median and most", _two(median(around), max(around))),
        Line("the same later on, p99 and most", _two(percentile(after, 0.99), max(after))),
        Line(
            f"all {PAGES} reconnect: all connected after; new text after, p99",
            f"{course.back_seconds:.1f} s; {percentile(away, 0.99):.1f} s",
        ),
        Line("all connect for the first time, snapshot shown", f"{course.open_seconds:.1f} s"),
        exactly(
            "snapshots sent again, after the first of each page",
            sum(page["snapshots"] - 1 for page in seen),
            0,
        ),
    ]


def _two(first: float, second: float) -> str:
    return f"{first:.0f} ms, {second:.0f} ms"


def _arrivals(page: dict[str, Any], chunks: list[tuple[int, float, str]]) -> list[Arrival]:
    """Return each chunk with the frame that brought it: the first whose seq is not smaller."""
    seqs = [seq for _, seq in page["frames"]]
    found = []
    for seq, committed, _ in chunks:
        at = bisect_left(seqs, seq)
        if at < len(seqs):
            arrived = page["frames"][at][0]
            connected = max((c for c in page["connected"] if c <= arrived), default=0.0)
            found.append(Arrival(committed, arrived, connected))
    return found


def _chunks() -> Chunks:
    """Return the chunks of each conversation with the time of their commit."""
    chunks: Chunks = {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT t.conversation_id, k.seq, k.text, "
            "extract(epoch FROM pg_xact_commit_timestamp(k.xmin))::float8 "
            "FROM turns_textchunk k JOIN turns_turn t ON t.id = k.turn_id ORDER BY 1, 2"
        )
        for conversation, seq, text, committed in cursor.fetchall():
            chunks.setdefault(conversation, []).append((seq, committed, text))
    return chunks


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _stop(watchers: ChildProcess, to: Path) -> list[dict[str, Any]]:
    watchers.say("stop", to=str(to))
    watchers.expect("stopped")
    seen: list[dict[str, Any]] = json.loads(to.read_text())
    return seen
