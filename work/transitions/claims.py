"""A worker takes queued jobs: from then on only its fence writes.

A claim is one statement that locks conversation, job and steps in this order. A job that
changed hands while the statement waited for its conversation has another generation than the
one looked up, and is not taken: what else the statement sees of it would be as old. The claim
of one job locks its conversation by raising its revision.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid4

from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK, Fence
from recovery.statements import MOVED_SQL, run
from recovery.switches import MAY_CLAIM_SQL
from turns import events
from work.lifecycles import KIND

# A claim may look past this many waiting jobs that others are claiming at the moment.
LOOK_AHEAD_JOBS: Final = 64

_WAITS: Final = """
    j.state = 'queued' AND j.cancel_requested_at IS NULL
        AND (j.deadline_at IS NULL OR j.deadline_at > statement_timestamp())
"""
# The runtime must be alive and on the job's host; work must not be disabled.
_MAY_RUN: Final = f"""
    EXISTS (SELECT FROM recovery_runtime r WHERE r.id = %(owner)s
        AND r.stopped_at IS NULL AND j.host_id IN ('', r.host_id)) AND {MAY_CLAIM_SQL}
"""
# Of the row `held`. The wall clock starts now unless it started before.
_TAKE: Final = f"""
    taken AS (
        UPDATE work_workjob j SET state = 'running', owner = %(owner)s,
            claim_token = held.token, generation = j.generation + 1,
            write_mark = (j.generation + 1)::bigint << {GENERATION_SHIFT_BITS},
            attempts = j.attempts + 1, claimed_at = statement_timestamp(),
            deadline_at = coalesce(j.deadline_at,
                statement_timestamp() + make_interval(secs => j.wall_clock_seconds))
        FROM held
        WHERE {{this}} AND j.generation = held.generation AND {_WAITS}
        RETURNING j.id, j.conversation_id, j.generation, j.claim_token, j.attempts
    )
"""  # noqa: S608  constants
# What an earlier generation left open. A first claim finds nothing, and does not look.
_TAKE_OVER: Final = f"""
    adopted AS (
        SELECT id, generation FROM taken WHERE attempts > 1
    ), unanswered AS (
        UPDATE work_workproviderstep p SET state = 'interrupted', error_code = 'runtime_lost',
            finished_at = statement_timestamp()
        FROM adopted WHERE p.job_id = adopted.id AND p.state = 'started'
    ), handed_over AS (
        UPDATE work_workstep s SET generation = adopted.generation,
            write_mark = adopted.generation::bigint << {GENERATION_SHIFT_BITS}
        FROM adopted WHERE s.job_id = adopted.id AND s.state = 'requested'
    ), unknown AS (
        UPDATE work_workstep s SET state = 'interrupted', error_code = 'outcome_unknown',
            finished_at = statement_timestamp(),
            write_mark = (s.generation::bigint << {GENERATION_SHIFT_BITS})
                | ((s.write_mark + 1) & {WRITE_COUNT_MASK})
        FROM adopted WHERE s.job_id = adopted.id AND s.state = 'running'
    )
"""  # noqa: S608  constants
_HOLD: Final = f"""
    WITH held AS (
        UPDATE turns_conversation c SET revision = c.revision + 1 FROM work_workjob j
        WHERE j.id = %(job)s AND c.id = j.conversation_id
            AND {{which}} AND {_WAITS} AND {_MAY_RUN}
        RETURNING j.generation, %(token)s::uuid AS token
    ), {_TAKE.format(this="j.id = %(job)s")}
"""  # noqa: S608  constants
_TAKEN: Final = f"""
    SELECT t.conversation_id, t.generation
    FROM held LEFT JOIN taken t ON true WHERE {MOVED_SQL.format(moved="t.id IS NOT NULL")}
"""  # noqa: S608  constants
_CLAIM_FRESH: Final = f"{_HOLD.format(which='j.attempts = 0')} {_TAKEN}"
_CLAIM_RELEASED: Final = f"{_HOLD.format(which='j.attempts > 0')}, {_TAKE_OVER} {_TAKEN}"
# Nobody is waited for: what is locked is being claimed or cancelled, or something is said in
# its conversation.
_CLAIM_SOME: Final = f"""
    WITH waiting AS MATERIALIZED (
        SELECT j.id, j.conversation_id, j.generation, j.created_at FROM work_workjob j
        WHERE j.finished_at IS NULL AND {_WAITS} AND {_MAY_RUN}
        ORDER BY j.created_at, j.id LIMIT %(limit)s + {LOOK_AHEAD_JOBS}
    ), held AS MATERIALIZED (
        SELECT w.id AS job_id, w.generation, gen_random_uuid() AS token
        FROM waiting w JOIN turns_conversation c ON c.id = w.conversation_id
        ORDER BY w.created_at, w.id LIMIT %(limit)s FOR NO KEY UPDATE OF c SKIP LOCKED
    ), {_TAKE.format(this="j.id = held.job_id")}, raised AS (
        UPDATE turns_conversation c SET revision = c.revision + 1
        WHERE c.id = ANY(ARRAY(SELECT conversation_id FROM taken))
    ), {_TAKE_OVER}
    SELECT id, conversation_id, generation, claim_token FROM taken
"""  # noqa: S608  constants


def claim_job(job_id: int, *, owner: UUID, token: UUID | None = None) -> Fence | None:
    """Return the fence of a queued job that the runtime `owner` now runs, or None.

    None means: nothing to do. It is claimed, cancelled, ended or gone (a repeated hint), out of
    time, or bound to another machine; or the runtime is not alive any more, and then another
    claims it; or work is disabled, and then the sweep hints again after `resume`. Nothing was
    written.

    What an earlier generation asked for and did not start is the new one's; what was still
    running is interrupted. A caller that may lose the connection during the commit gives its
    own `token` and asks `claim_under` on a new one.
    """
    token = token or uuid4()
    claim = {"job": job_id, "owner": owner, "token": token, "kind": KIND}
    claimed = run(_CLAIM_FRESH, claim) or run(_CLAIM_RELEASED, claim)
    if not claimed:
        return None
    [(conversation_id, generation)] = claimed
    events.announce_on_commit(conversation_id)
    return Fence(job_id, generation, token)


def claim_jobs(*, owner: UUID, limit: int) -> list[Fence]:
    """Return the fences of up to `limit` queued jobs that `owner` may run, the oldest first.

    After a lost connection `claims_of` tells which were committed.
    """
    claimed = run(_CLAIM_SOME, {"owner": owner, "limit": limit, "kind": KIND})
    for _, conversation_id, _, _ in claimed:
        events.announce_on_commit(conversation_id)
    return [Fence(pk, generation, token) for pk, _, generation, token in claimed]
