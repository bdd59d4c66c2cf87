"""What recovery means for a job: another worker goes on where its rows say it stood.

An orphan is released for a new claim, as its steps tell what was done and what was not. It ends
honestly when it was asked to stop, when its time is over, when it was adopted as often as
allowed, or when nobody took it up in time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final

import structlog
from django.db import connection

from recovery.arrays import array
from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import ErrorCode
from recovery.models import Action, Cause
from recovery.runner import Orphan, Recovery, Settled
from recovery.timeline import claimed_detail
from turns import events
from work.dispatch import dispatch_job
from work.lifecycles import KIND
from work.models import WorkJob
from work.transitions.endings import End, end_jobs, raise_revisions_of
from work.transitions.releasing import release_jobs

log = structlog.get_logger(__name__)

# Lines for one batch: thousands of them say less than their count. Each row has its
# `RecoveryEvent`.
LOGGED_ROWS_MAX: Final = 100
_STANDINGS: Final = """
    SELECT id, cancel_requested_at IS NOT NULL,
        coalesce(deadline_at <= clock_timestamp(), false),
        attempts - planned_releases - 1, attempts > 0, host_id <> '', claimed_at
    FROM work_workjob WHERE id = ANY(%s::bigint[])
"""


@dataclass(frozen=True, slots=True)
class _Standing:
    """What a job's row says about whether it may go on."""

    is_cancelled: bool
    is_late: bool
    adoptions: int
    had_begun: bool
    is_bound: bool
    claimed_at: datetime | None


class WorkRecovery(Recovery):
    """Releases orphaned jobs for adoption, ends what cannot go on, dispatches waiting ones."""

    kind: ClassVar[str] = KIND
    model = WorkJob
    parent = "conversation"

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """Release or end the orphans with all they consist of, set-wise."""
        with connection.cursor() as cursor:
            cursor.execute(_STANDINGS, [array(orphan.pk for orphan in orphans)])
            standings = {row[0]: _Standing(*row[1:]) for row in cursor.fetchall()}
        revisions = raise_revisions_of(
            {orphan.parent_pk for orphan in orphans if orphan.parent_pk is not None}
        )
        ends: list[End] = []
        released: dict[Cause, list[int]] = defaultdict(list)
        settled: list[Settled] = []
        for orphan in orphans:
            end = _end_of(orphan, standings[orphan.pk])
            if end is None:
                released[orphan.cause].append(orphan.pk)
                told = claimed_detail(standings[orphan.pk].claimed_at)
                settled.append(Settled(orphan, Action.ADOPTED, detail=told))
            else:
                ends.append(end)
                settled.append(Settled(orphan, Action.INTERRUPTED, end.code.value))
        for cause, ids in released.items():
            release_jobs(ids, ErrorCode(cause.value))
        end_jobs(ends, revisions=revisions)
        return settled

    def intention(self, orphan: Orphan) -> tuple[Action, str]:
        """Return what a dry run shows: a released job is adopted, unless it must end."""
        if orphan.waiting:
            return Action.REDISPATCHED, ""
        with connection.cursor() as cursor:
            cursor.execute(_STANDINGS, [array([orphan.pk])])
            row = cursor.fetchone()
        end = _end_of(orphan, _Standing(*row[1:])) if row else None
        return (Action.ADOPTED, "") if end is None else (Action.INTERRUPTED, end.code.value)

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
        """Hint that these jobs wait."""
        for pk in pks:
            dispatch_job(pk)


def _end_of(orphan: Orphan, standing: _Standing) -> End | None:
    """Return how the orphan must end, None when another worker may go on with it."""
    if standing.is_cancelled:
        return End(orphan.pk, WorkJob.State.CANCELLED, ErrorCode.CANCELLED)
    if standing.is_late:
        return End(orphan.pk, WorkJob.State.BUDGET_EXHAUSTED, ErrorCode.DEADLINE_PASSED)
    if orphan.cause == Cause.NEVER_STARTED:
        code = ErrorCode.NEVER_STARTED
        if standing.had_begun:
            code = ErrorCode.HOST_UNAVAILABLE if standing.is_bound else ErrorCode.NOT_ADOPTED
        return End(orphan.pk, WorkJob.State.INTERRUPTED, code)
    if standing.adoptions >= ADOPTION_ATTEMPTS:
        code = ErrorCode.ADOPTION_ATTEMPTS_EXHAUSTED
        return End(orphan.pk, WorkJob.State.INTERRUPTED, code)
    return None
