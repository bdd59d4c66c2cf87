"""What recovery means for a job: another worker goes on where its rows say it stood.

An orphan is released for a new claim, as its steps tell what was done and what was not. It ends
honestly when it was asked to stop, when its time is over, when it was adopted as often as
allowed, or when nobody took it up in time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import structlog
from django.db import connection

from recovery.arrays import array
from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import ErrorCode
from recovery.models import Action, Cause
from recovery.runner import Orphan, Recovery, Settled
from recovery.timeline import CLAIMED_DETAIL_SQL
from turns import events
from work import bounds
from work.dispatch import dispatch_job
from work.lifecycles import KIND
from work.models import WorkJob
from work.transitions.endings import End, end_jobs, raise_revisions_of
from work.transitions.releasing import release_jobs

log = structlog.get_logger(__name__)

# Lines for one batch: thousands of them say less than their count. Each row has its
# `RecoveryEvent`. All that one dead worker had is said.
LOGGED_ROWS_MAX: Final = bounds.JOBS_PER_PROCESS
# They spare two workers the second until they look for what waits (`work/host.py`), and
# thousands of them took longer to send than the jobs to release.
HINTS_PER_SECOND: Final = 2 * bounds.JOBS_PER_PROCESS
# Why a job must end, None when another worker may go on with it; and what tells of its claim.
_VERDICTS: Final = f"""
    SELECT id, CASE
            WHEN cancel_requested_at IS NOT NULL THEN '{ErrorCode.CANCELLED.value}'
            WHEN deadline_at <= clock_timestamp() THEN '{ErrorCode.DEADLINE_PASSED.value}'
            WHEN state = 'queued' AND attempts = 0 THEN '{ErrorCode.NEVER_STARTED.value}'
            WHEN state = 'queued' AND host_id <> '' AND NOT EXISTS (
                    SELECT FROM recovery_runtime r WHERE r.host_id = j.host_id
                        AND r.role = 'worker' AND r.stopped_at IS NULL)
                THEN '{ErrorCode.HOST_UNAVAILABLE.value}'
            WHEN state = 'queued' THEN '{ErrorCode.NOT_ADOPTED.value}'
            WHEN attempts - planned_releases > {ADOPTION_ATTEMPTS}
                THEN '{ErrorCode.ADOPTION_ATTEMPTS_EXHAUSTED.value}'
        END, {CLAIMED_DETAIL_SQL}
    FROM work_workjob j WHERE id = ANY(%s::bigint[])
"""  # noqa: S608  constants
_ENDS: Final = {
    ErrorCode.CANCELLED: WorkJob.State.CANCELLED,
    ErrorCode.DEADLINE_PASSED: WorkJob.State.BUDGET_EXHAUSTED,
}


class WorkRecovery(Recovery):
    """Releases orphaned jobs for adoption, ends what cannot go on, dispatches waiting ones."""

    kind: ClassVar[str] = KIND
    model = WorkJob
    parent = "conversation"
    # so no claim writes to the index
    oldest_first = True

    def __init__(self) -> None:
        super().__init__()
        self._hints_from = -1.0
        self._hints_left = 0

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """Release or end the orphans with all they consist of, set-wise."""
        verdicts = _verdicts([orphan.pk for orphan in orphans])
        revisions = raise_revisions_of(
            {orphan.parent_pk for orphan in orphans if orphan.parent_pk is not None}
        )
        ends: list[End] = []
        released: dict[Cause, list[int]] = defaultdict(list)
        settled: list[Settled] = []
        for orphan in orphans:
            _, code, claimed = verdicts[orphan.pk]
            if code is None:
                released[orphan.cause].append(orphan.pk)
                settled.append(Settled(orphan, Action.ADOPTED, detail=claimed))
            else:
                ends.append(_end(orphan.pk, code))
                settled.append(Settled(orphan, Action.INTERRUPTED, code))
        for cause, ids in released.items():
            release_jobs(ids, ErrorCode(cause.value))
        end_jobs(ends, revisions=revisions)
        return settled

    def intention(self, orphan: Orphan) -> tuple[Action, str]:
        """Return what a dry run shows: a released job is adopted, unless it must end."""
        if orphan.waiting:
            return Action.REDISPATCHED, ""
        _, code, _ = _verdicts([orphan.pk]).get(orphan.pk, (orphan.pk, None, None))
        return (Action.ADOPTED, "") if code is None else (Action.INTERRUPTED, code)

    def publish(self, settled: Sequence[Settled]) -> None:
        """Say that these conversations changed, hint at what waits now, and log it."""
        for done in settled[:LOGGED_ROWS_MAX]:
            log.info(
                "job.released" if done.action == Action.ADOPTED else "job.ended",
                job_id=done.orphan.pk,
                error_code=done.error_code,
                generation=done.orphan.generation,
                owner=done.orphan.owner,
            )
        if len(settled) > LOGGED_ROWS_MAX:
            log.info("job.more_settled", count=len(settled) - LOGGED_ROWS_MAX)
        self.dispatch([done.orphan.pk for done in settled if done.action == Action.ADOPTED])
        events.announce_many(
            o.parent_pk for o in (done.orphan for done in settled) if o.parent_pk is not None
        )

    def dispatch(self, pks: Sequence[int]) -> None:
        """Hint that these jobs wait, of thousands at the first."""
        now = time.monotonic()
        if now - self._hints_from >= 1.0:
            self._hints_from, self._hints_left = now, HINTS_PER_SECOND
        hinted = pks[: self._hints_left]
        self._hints_left -= len(hinted)
        for pk in hinted:
            dispatch_job(pk)


def _verdicts(pks: Sequence[int]) -> dict[int, tuple[int, str | None, str | None]]:
    """Return each job's row: its id, the code with which it must end, if it must, and the
    detail of its release."""
    with connection.cursor() as cursor:
        cursor.execute(_VERDICTS, [array(pks)])
        return {row[0]: row for row in cursor.fetchall()}


def _end(pk: int, code: str) -> End:
    reason = ErrorCode(code)
    return End(pk, _ENDS.get(reason, WorkJob.State.INTERRUPTED), reason)
