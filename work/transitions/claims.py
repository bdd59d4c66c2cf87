"""A worker takes a queued job: from then on only its fence writes."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid4

from django.db import connection, transaction

from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS, Fence
from recovery.switches import MAY_CLAIM_SQL
from turns import events
from work.lifecycles import KIND
from work.transitions.children import hand_over_children
from work.transitions.locks import lock_job, raise_revision_of

# One conditional update: the queue decides, the runtime must be alive and on the job's host,
# work must not be disabled, and the wall clock starts now unless it started before.
CLAIM: Final = f"""
    UPDATE work_workjob j SET state = 'running', owner = %(owner)s, claim_token = %(token)s,
        generation = generation + 1,
        write_mark = (generation + 1)::bigint << {GENERATION_SHIFT_BITS},
        attempts = attempts + 1, claimed_at = statement_timestamp(),
        deadline_at = coalesce(deadline_at,
            statement_timestamp() + make_interval(secs => wall_clock_seconds))
    WHERE id = %(job)s AND state = 'queued' AND cancel_requested_at IS NULL
        AND (deadline_at IS NULL OR deadline_at > clock_timestamp())
        AND EXISTS (SELECT FROM recovery_runtime r
                    WHERE r.id = %(owner)s AND r.stopped_at IS NULL
                        AND j.host_id IN ('', r.host_id))
        AND {MAY_CLAIM_SQL}
    RETURNING generation, conversation_id, attempts
"""  # noqa: S608  constants


@transaction.atomic(durable=True)
def claim_job(job_id: int, *, owner: UUID, token: UUID | None = None) -> Fence | None:
    """Return the fence of a queued job that the runtime `owner` now runs, or None.

    None means: nothing to do. It is claimed, cancelled, ended or gone (a repeated hint), out of
    time, or bound to another machine; or the runtime is not alive any more; or work is
    disabled. Nothing was written.

    What an earlier generation asked for and did not start is the new one's; what was running is
    interrupted. A caller that may lose the connection during the commit gives its own `token`
    and asks `claim_under` on a new one.
    """
    if not raise_revision_of(job_id):
        return None
    lock_job(job_id)
    token = token or uuid4()
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, {"job": job_id, "owner": owner, "token": token, "kind": KIND})
        claimed = cursor.fetchone()
    if claimed is None:
        transaction.set_rollback(True)
        return None
    generation, conversation_id, attempts = claimed
    if attempts > 1:
        hand_over_children([job_id], ErrorCode.RUNTIME_LOST)
    events.announce_on_commit(conversation_id)
    return Fence(job_id, generation, token)
