"""Sweeping 10,000 orphaned turns, against the least that plain SQL can do for the same rows.

The floor is five UPDATEs in one transaction, on the same tables with the same triggers: the
turn, its answer, its receipt, its provider step and its two tool steps. Recovery also finds
and locks them, tests them again, folds and deletes their text, raises revisions, and writes an
event for each. Floor and recovery take turns, each on rows made afresh.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from django.db import connection, transaction

from recovery.fences import NEXT_MARK_SQL
from tests.benchmarks import fill
from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import median, peak_memory, seconds, spread
from tests.benchmarks.report import Line, at_most
from tests.factories import RuntimeFactory, UserFactory
from turns.models import Turn
from turns.recovery import TurnRecovery

ORPHANS = 10_000
FINISHED = 1_000_000
FIRST = 1_000
CHUNKS, TOOLS = 3, 2
_END = "state = 'interrupted', error_code = 'runtime_lost', finished_at = now()"
FLOOR = (
    f"UPDATE turns_turn SET {_END}, write_mark = {NEXT_MARK_SQL} WHERE id = ANY(%(ids)s)",
    "UPDATE turns_message SET state = 'interrupted', finished_at = now() "
    "WHERE id = ANY(%(answers)s)",
    f"UPDATE turns_receipt SET {_END} WHERE turn_id = ANY(%(ids)s)",
    f"UPDATE turns_providerstep SET {_END} WHERE turn_id = ANY(%(ids)s)",
    f"UPDATE turns_toolstep SET {_END} WHERE turn_id = ANY(%(ids)s)",
)


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return what was seen over empty tables and over a million finished turns."""
    rounds, history = (2, 20_000) if quick else (7, FINISHED)
    bench = _Sweep()
    lines = bench.compare("", rounds)
    lines += bench.memory()
    bench.fill_history(history)
    lines += bench.compare(f", over {history:,} finished turns", rounds)
    return lines


class _Sweep:
    def __init__(self) -> None:
        self._person = UserFactory.create().pk
        # 500 turns each, as many as a worker serves
        self._dead: list[UUID] = [RuntimeFactory.create(lost=True).pk for _ in range(20)]
        self._next = FIRST
        self._keep = False

    def compare(self, where: str, rounds: int) -> list[Line]:
        floors: list[float] = []
        sweeps: list[float] = []
        again: list[float] = []
        settle_again: list[float] = []
        for _ in range(rounds):
            floors.append(self._timed(self._floor))
            sweeps.append(self._timed(self._sweep))
            assert not Turn.objects.open().exists()
            again += [seconds(self._sweep_nothing) for _ in range(5)]
            settle_again += [seconds(self._settle_nothing) for _ in range(5)]
        ratio = median(sweeps) / median(floors)
        return [
            at_most(f"sweep of {ORPHANS:,} orphans ÷ floor with triggers{where}", ratio, 1.8),
            Line(
                f"floor, median of {rounds}{where}",
                f"{median(floors):.2f} s ({spread(floors)})",
            ),
            Line(
                f"sweep, median of {rounds}{where}",
                f"{median(sweeps):.2f} s ({spread(sweeps)})",
            ),
            at_most(f"second run{where}", median(again) * 1000, 5, " ms", digits=1),
            at_most(
                f"of that, without pulse and burial{where}",
                median(settle_again) * 1000,
                5,
                " ms",
                digits=1,
            ),
        ]

    def memory(self) -> list[Line]:
        """How much the process and its session grow, for 10,000 orphans and for 40,000."""
        grown = []
        for count in (ORPHANS, 4 * ORPHANS):
            self._orphans(count)
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (backend,) = cursor.fetchone()
            with peak_memory() as ours, peak_memory(backend) as its:
                self._sweep()
            grown.append((ours(), its()))
        (small, small_its), (large, large_its) = grown
        return [
            at_most(
                "memory grown by, 40,000 orphans against 10,000",
                large - small,
                16,
                " MiB",
                digits=0,
            ),
            Line(
                "memory grown by for 10,000 (process, session)",
                f"{small:.0f} MiB, {small_its:.0f} MiB",
            ),
            Line(
                "memory grown by for 40,000 (process, session)",
                f"{large:.0f} MiB, {large_its:.0f} MiB",
            ),
        ]

    def fill_history(self, count: int) -> None:
        fill.empty()
        self._next = FIRST
        for _ in range(0, count, 100_000):
            some = min(100_000, count)
            fill.finished(some, first=self._next, person=self._person, owners=self._dead)
            self._next += some
        fill.vacuum()
        self._keep = True

    def _orphans(self, count: int) -> None:
        if not self._keep:
            fill.empty()
            self._next = FIRST
        fill.running(
            count,
            first=self._next,
            person=self._person,
            owners=self._dead,
            chunks=CHUNKS,
            tools=TOOLS,
        )
        self._next += count
        fill.settle_down()

    def _timed(self, work: Callable[[], None]) -> float:
        self._orphans(ORPHANS)
        return seconds(work)

    def _floor(self) -> None:
        ids = list(range(self._next - ORPHANS, self._next))
        answers = [2 * pk + 1 for pk in ids]
        with transaction.atomic(), connection.cursor() as cursor:
            for statement in FLOOR:
                cursor.execute(statement, {"ids": ids, "answers": answers})

    @staticmethod
    def _sweep() -> None:
        report = TurnRecovery().run()
        assert report.all_settled

    @staticmethod
    def _sweep_nothing() -> None:
        assert TurnRecovery().run().examined == 0

    @staticmethod
    def _settle_nothing() -> None:
        assert TurnRecovery().settle_orphans().examined == 0
