"""A job loses its worker and waits for another: queued again, one generation on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from recovery.arrays import array
from recovery.bounds import ADMISSION_GRACE_SECONDS, PLANNED_RELEASES
from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS, Fence
from recovery.models import Action, Cause, RecoveryEvent
from recovery.timeline import CLAIMED_DETAIL_SQL
from turns import events
from work import bounds
from work.lifecycles import KIND
from work.models import WorkJob
from work.transitions.children import hand_over_children
from work.transitions.endings import End, end_jobs, raise_revisions_of

_RELEASE: Final = f"""
    UPDATE work_workjob SET state = 'queued', owner = NULL, claim_token = NULL,
        generation = generation + 1,
        write_mark = (generation + 1)::bigint << {GENERATION_SHIFT_BITS},
        planned_releases = planned_releases + %(planned)s,
        queue_deadline_at = least(deadline_at,
            statement_timestamp() + make_interval(secs => {bounds.ADOPTION_DEADLINE_SECONDS})),
        next_dispatch_at =
            statement_timestamp() + make_interval(secs => {ADMISSION_GRACE_SECONDS}),
        dispatch_count = 0
    WHERE id = ANY(%(ids)s::bigint[])
"""  # noqa: S608  constants
_LOCK_CONVERSATIONS_OF: Final = """
    SELECT id FROM turns_conversation WHERE id IN (
        SELECT conversation_id FROM work_workjob WHERE id = ANY(%(ids)s))
    ORDER BY id FOR NO KEY UPDATE
"""
_LOCK_OWNED: Final = f"""
    SELECT j.id, j.conversation_id, j.cancel_requested_at IS NOT NULL,
        j.deadline_at <= clock_timestamp(), j.planned_releases, j.generation, j.owner,
        {CLAIMED_DETAIL_SQL}
    FROM work_workjob j JOIN unnest(%(ids)s::bigint[], %(generations)s::int[],
        %(tokens)s::uuid[]) AS mine(id, generation, token)
        ON (j.id, j.generation, j.claim_token) = (mine.id, mine.generation, mine.token)
    WHERE j.state = 'running' ORDER BY j.id FOR NO KEY UPDATE OF j
"""  # noqa: S608  constants


def release_jobs(ids: Sequence[int], code: ErrorCode, *, planned: bool = False) -> None:
    """Queue locked, running jobs again, for another worker; their time goes on.

    Set-wise, in the transaction of the caller, who holds the locks of the conversations and
    jobs, raises the revisions, and announces and dispatches it afterwards. `code` is why the
    requests that were under way were lost.
    """
    if not ids:
        return
    with connection.cursor() as cursor:
        cursor.execute(_RELEASE, {"ids": array(ids), "planned": int(planned)})
    hand_over_children(ids, code)


@transaction.atomic(durable=True)
def release_own_jobs(
    fences: Sequence[Fence], *, said: Mapping[int, str] | None = None
) -> list[int]:
    """Give back what these claims still hold; return the ids of the jobs that wait again.

    For a runtime that stops. A planned release is not charged to the adoption attempts, and
    leaves the same event as one by recovery, so that a job's owners stay known. Past its own
    bound, after a cancel, or once its time is over, the job ends instead; its notice shows, but
    after a cancel, what its model has `said` (by job) where no row keeps it.
    """
    words = said or {}
    asked: dict[str, list[int] | list[UUID]] = {
        "ids": [fence.pk for fence in fences],
        "generations": [fence.generation for fence in fences],
        "tokens": [fence.token for fence in fences],
    }
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_CONVERSATIONS_OF, asked)
        cursor.execute(_LOCK_OWNED, asked)
        held = cursor.fetchall()
    revisions = raise_revisions_of({conversation_id for _, conversation_id, *_ in held})
    ends: list[End] = []
    released: list[int] = []
    given_back: list[RecoveryEvent] = []
    for pk, _, cancelled, is_late, planned_releases, generation, owner, claimed in held:
        if cancelled:
            ends.append(End(pk, WorkJob.State.CANCELLED, ErrorCode.CANCELLED))
        elif is_late:
            state, code = WorkJob.State.BUDGET_EXHAUSTED, ErrorCode.DEADLINE_PASSED
            ends.append(End(pk, state, code, words.get(pk, "")))
        elif planned_releases >= PLANNED_RELEASES:
            state, code = WorkJob.State.INTERRUPTED, ErrorCode.RUNTIME_STOPPED
            ends.append(End(pk, state, code, words.get(pk, "")))
        else:
            released.append(pk)
            given_back.append(
                RecoveryEvent(
                    kind=KIND,
                    row_id=pk,
                    cause=Cause.RUNTIME_STOPPED,
                    action=Action.ADOPTED,
                    generation=generation,
                    owner=owner,
                    detail=json.loads(claimed),
                )
            )
    release_jobs(released, ErrorCode.RUNTIME_STOPPED, planned=True)
    RecoveryEvent.objects.bulk_create(given_back)
    end_jobs(ends, revisions=revisions)
    for conversation_id in revisions:
        events.announce_on_commit(conversation_id)
    return released
