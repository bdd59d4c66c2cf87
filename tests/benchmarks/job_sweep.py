"""Sweeping 10,000 orphaned jobs, against plain SQL that writes the same rows.

Each job has a provider step that is open, a call that runs and one that waits. Once all are
released for another worker, once all are ended, as they were adopted as often as allowed: then
each gets a report and a message that says so. The floor is one statement a table in one
transaction, by id, on the same tables, once with triggers and foreign keys and once with both
off; it is told the ids and writes one fixed text. Recovery also finds and locks the rows, tests
them again, words each report from what the job did, and hints at the first of what waits. They
take turns, on rows made afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.fences import NEXT_MARK_SQL
from tests.benchmarks import jobs_fill
from tests.benchmarks.databases import Place
from tests.benchmarks.fill import unguarded
from tests.benchmarks.measuring import median, seconds, spread
from tests.benchmarks.report import Line, at_most
from tests.factories import RuntimeFactory, UserFactory
from turns.digests import digest
from work.models import JobReport, WorkJob, WorkStep
from work.recovery import WorkRecovery

ORPHANS: Final = 10_000
FIRST: Final = 1_000
NOTICE: Final = "Interrupted: its workers died. One step has an unknown outcome. ".ljust(200)
_EVENT: Final = """
    INSERT INTO recovery_recoveryevent
        (kind, row_id, cause, action, generation, error_code, owner, detail)
    SELECT 'work', id, 'runtime_lost', %(action)s, generation, %(code)s, owner, NULL
    FROM work_workjob WHERE id = ANY(%(ids)s)
"""
_REQUESTS: Final = """
    UPDATE work_workproviderstep SET state = 'interrupted', error_code = 'runtime_lost',
        finished_at = now() WHERE job_id = ANY(%(ids)s)
"""
_REVISIONS: Final = (
    "UPDATE turns_conversation SET revision = revision + 1 WHERE id = ANY(%(ids)s)"
)
RELEASE: Final = (
    _EVENT,
    """UPDATE work_workjob SET state = 'queued', owner = NULL, claim_token = NULL,
        generation = generation + 1, write_mark = (generation + 1)::bigint << 32,
        queue_deadline_at = now() + interval '300 s', next_dispatch_at = now() + interval '5 s'
    WHERE id = ANY(%(ids)s)""",
    _REQUESTS,
    f"""UPDATE work_workstep SET state = 'interrupted', error_code = 'outcome_unknown',
        finished_at = now(), write_mark = {NEXT_MARK_SQL}
    WHERE job_id = ANY(%(ids)s) AND state = 'running'""",
    """UPDATE work_workstep SET generation = generation + 1,
        write_mark = (generation + 1)::bigint << 32
    WHERE job_id = ANY(%(ids)s) AND state = 'requested'""",
    _REVISIONS,
)
END: Final = (
    _EVENT,
    """INSERT INTO work_jobreport (id, job_id, generation, kind, text, byte_count, digest)
    SELECT id, id, generation, 'notice', %(text)s, 200, %(digest)s
    FROM work_workjob WHERE id = ANY(%(ids)s)""",
    _REQUESTS,
    f"""UPDATE work_workstep SET state = 'interrupted', error_code = 'outcome_unknown',
        finished_at = now(), write_mark = {NEXT_MARK_SQL} WHERE job_id = ANY(%(ids)s)""",
    f"""UPDATE work_workjob SET state = 'interrupted', finished_at = now(),
        error_code = 'adoption_attempts_exhausted', ended_revision = 2,
        write_mark = {NEXT_MARK_SQL} WHERE id = ANY(%(ids)s)""",
    """INSERT INTO turns_message (id, conversation_id, role, state, text, digest, finished_at)
    SELECT n, n, 'assistant', 'complete', %(text)s, %(digest)s, now()
    FROM unnest(%(ids)s) AS n""",
    """INSERT INTO work_jobreportmessage (report_id, message_id)
    SELECT n, n FROM unnest(%(ids)s) AS n""",
    _REVISIONS,
)


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return what releasing took, and what ending took."""
    bench = _Sweep(rounds=2 if quick else 7)
    return [
        *bench.compare("released", RELEASE, attempts=1),
        *bench.compare("ended with report and message", END, attempts=ADOPTION_ATTEMPTS + 1),
    ]


class _Sweep:
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._person = UserFactory.create().pk
        # 32 jobs are what a worker does at once
        self._dead: list[UUID] = [
            RuntimeFactory.create(lost=True).pk for _ in range(ORPHANS // 32)
        ]

    def compare(self, what: str, floor: Sequence[str], *, attempts: int) -> list[Line]:
        """Let the floors and recovery take turns."""
        bare: list[float] = []
        guarded: list[float] = []
        sweeps: list[float] = []
        again: list[float] = []
        for _ in range(self._rounds):
            bare.append(self._timed(lambda: _write(floor, unguarded()), attempts))
            guarded.append(self._timed(lambda: _write(floor, _guarded()), attempts))
            sweeps.append(self._timed(_sweep, attempts))
            _require(ended=attempts > 1)
            again += [seconds(_sweep_nothing) for _ in range(5)]
        took, whose = median(sweeps), f"10,000 orphans {what} ÷ floor"
        return [
            at_most(f"{whose} with triggers", took / median(guarded), 2),
            at_most(f"{whose} without triggers", took / median(bare), 2),
            Line(f"{what}: floor with triggers, median of {self._rounds}", _told(guarded)),
            Line(f"{what}: floor without, median of {self._rounds}", _told(bare)),
            Line(f"{what}: sweep, median of {self._rounds}", _told(sweeps)),
            Line(f"{what}: second run", f"{median(again) * 1000:.1f} ms"),
        ]

    def _timed(self, work: Callable[[], None], attempts: int) -> float:
        jobs_fill.empty()
        with connection.cursor() as cursor:
            cursor.execute("CHECKPOINT")
        jobs_fill.running(
            ORPHANS, first=FIRST, person=self._person, owners=self._dead, attempts=attempts
        )
        return seconds(work)


def _told(times: list[float]) -> str:
    return f"{median(times):.2f} s ({spread(times)})"


@contextmanager
def _guarded() -> Iterator[CursorWrapper]:
    """Give a cursor for which triggers and foreign keys look, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        yield cursor


def _write(
    statements: Sequence[str], transaction_of: AbstractContextManager[CursorWrapper]
) -> None:
    values: dict[str, Any] = {
        "ids": list(range(FIRST, FIRST + ORPHANS)),
        "action": "adopted",
        "code": "",
        "text": NOTICE,
        "digest": digest(NOTICE),
    }
    with transaction_of as cursor:
        for statement in statements:
            cursor.execute(statement, values)


def _sweep() -> None:
    assert WorkRecovery().run().all_settled


def _sweep_nothing() -> None:
    report = WorkRecovery().run()
    # on a slow machine what was released five seconds ago is hinted at again
    assert report.adopted == report.interrupted == 0


def _require(*, ended: bool) -> None:
    """Every row is as it should be, whatever the time."""
    state = "interrupted" if ended else "queued"
    waiting = WorkStep.objects.filter(state="requested", generation=2)
    assert WorkJob.objects.filter(state=state).count() == ORPHANS
    assert JobReport.objects.count() == (ORPHANS if ended else 0)
    assert waiting.count() == (0 if ended else ORPHANS)
