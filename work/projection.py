"""What jobs look like right now, read in one statement each.

The SQL of a job is shared by the API, which reads it through Django, and by the panel of the
live view (`work/panel.py`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, LiteralString

from django.db import connection

from work.schemas import ComputerShape, JobShape

# --- JSON of one row, over the alias j (job) ---

# As the index of live jobs says it.
IS_OPEN: Final[LiteralString] = "j.finished_at IS NULL"
# The result speaks for a job that completed, the notice for any other that has ended.
REPORT: Final[LiteralString] = """
    work_jobreport r WHERE r.job_id = j.id AND j.finished_at IS NOT NULL
        AND r.kind = CASE j.state WHEN 'completed' THEN 'result' ELSE 'notice' END
"""
STEPS: Final[LiteralString] = """
    SELECT p.sequence AS provider, 0 AS tool,
        json_build_object('id', p.id::text, 'kind', 'provider', 'name', p.model,
            'state', p.state, 'error_code', nullif(p.error_code, '')) AS step
    FROM work_workproviderstep p WHERE p.job_id = j.id
    UNION ALL
    SELECT p.sequence, q.sequence,
        json_build_object('id', q.id::text, 'kind', 'tool', 'name', q.name,
            'state', q.state, 'error_code', nullif(q.error_code, ''))
    FROM work_workstep q JOIN work_workproviderstep p ON p.id = q.provider_step_id
    WHERE q.job_id = j.id
"""
# What `commit` told the model, in `work/coding/tools/branch.py`.
COMMIT: Final[LiteralString] = """
    SELECT substring(q.result FROM '^Committed ([0-9a-f]{40,64}) ') FROM work_workstep q
    WHERE q.job_id = j.id AND q.name = 'commit' AND q.state = 'succeeded'
        AND q.result LIKE 'Committed %%' ORDER BY q.sequence DESC LIMIT 1
"""
# After the end, where something is on it: the report of a job that completed begins its last
# line so (`Facts`, in `work/coding/worktrees.py`). Of any other, nobody counted what its calls
# changed: those that only read left nothing, and a branch with nothing on it is removed.
BRANCH: Final[LiteralString] = f"""
    CASE WHEN j.finished_at IS NULL OR ({COMMIT}) IS NOT NULL OR CASE j.state
        WHEN 'completed' THEN EXISTS (SELECT FROM {REPORT}
            AND substring(r.text FROM '[^\\n]*$') LIKE 'The work is on branch %%')
        ELSE EXISTS (SELECT FROM work_workstep q WHERE q.job_id = j.id
            AND q.effect <> 'read' AND q.started_at IS NOT NULL)
    END THEN nullif(j.branch, '') END
"""  # noqa: S608  constants
CORE: Final[LiteralString] = f"""
    'id', j.id::text, 'conversation_id', j.conversation_id::text, 'kind', j.kind,
    'goal', j.goal, 'state', j.state, 'error_code', nullif(j.error_code, ''),
    'cancel_requested', j.cancel_requested_at IS NOT NULL,
    'generation', j.generation, 'attempts', j.attempts,
    'report', (SELECT r.text FROM {REPORT}),
    'message_id', (SELECT w.message_id::text FROM work_jobreportmessage w
                   WHERE w.report_id = (SELECT r.id FROM {REPORT})),
    'branch', CASE j.kind WHEN 'coding' THEN ({BRANCH}) END,
    'commit', CASE j.kind WHEN 'coding' THEN ({COMMIT}) END,
    'usage', (SELECT json_object_agg(u.key, u.total) FROM (
        SELECT e.key, sum(e.value::bigint) AS total
        FROM work_workproviderstep p CROSS JOIN jsonb_each_text(p.usage) e
        WHERE p.job_id = j.id AND e.value ~ '^[0-9]{{1,15}}$' GROUP BY e.key) u),
    'created_at', j.created_at, 'finished_at', j.finished_at
"""  # noqa: S608  constants
JOB: Final[LiteralString] = f"""
    json_build_object({CORE},
        'steps', coalesce((SELECT json_agg(x.step ORDER BY x.provider, x.tool)
                           FROM ({STEPS}) x), '[]'::json),
        'context', j.context, 'computer_id', j.computer_id::text, 'agent', j.agent,
        'cwd', j.cwd, 'wall_clock_seconds', j.wall_clock_seconds)
"""  # noqa: S608  constants


def job(job_id: int, person_id: int) -> JobShape | None:
    """Return the job as it is now; None when this person has no such job."""
    rows = _rows(
        f"""SELECT {JOB}::text FROM work_workjob j
            WHERE j.id = %(job)s AND j.person_id = %(person)s""",  # noqa: S608  constants
        {"job": job_id, "person": person_id},
    )
    return JobShape.model_validate_json(rows[0][0]) if rows else None


def jobs(
    person_id: int,
    *,
    before: int | None = None,
    after: int | None = None,
    conversation_id: int | None = None,
    open_only: bool = False,
    limit: int,
) -> list[JobShape] | None:
    """Return up to `limit` of the person's jobs, newest first: those older than `before`, those
    newer than `after`.

    With `conversation_id`, those of that conversation: None when it is not theirs.
    """
    where: LiteralString = "j.person_id = %(person)s"
    if open_only:
        where += f" AND {IS_OPEN}"
    if before is not None:
        where += " AND j.id < %(before)s"
    if after is not None:
        where += " AND j.id > %(after)s"
    if conversation_id is not None:
        where += " AND j.conversation_id = %(conversation)s"
    rows = _rows(
        f"""SELECT %(conversation)s::bigint IS NULL
                OR EXISTS (SELECT FROM turns_conversation c
                    WHERE c.id = %(conversation)s AND c.owner_id = %(person)s),
            (SELECT coalesce(json_agg(x.job ORDER BY x.id DESC), '[]'::json)
             FROM (SELECT j.id, {JOB} AS job FROM work_workjob j
                   WHERE {where} ORDER BY j.id DESC LIMIT %(limit)s) x)::text
        """,  # noqa: S608  constants
        {
            "person": person_id,
            "before": before,
            "after": after,
            "conversation": conversation_id,
            "limit": limit,
        },
    )
    is_theirs, found = rows[0]
    if not is_theirs:
        return None
    return [JobShape.model_validate(one) for one in json.loads(found)]


def computers(person_id: int) -> list[ComputerShape]:
    """Return the computers the person's jobs may work on, the oldest first."""
    rows = _rows(
        """SELECT json_build_object('id', c.id::text, 'name', c.name, 'roots', c.roots,
                'tier', c.tier, 'created_at', c.created_at,
                'checks', ARRAY(SELECT k FROM jsonb_object_keys(c.checks) k ORDER BY k))::text
            FROM work_computer c WHERE c.person_id = %(person)s AND c.revoked_at IS NULL
            ORDER BY c.id""",
        {"person": person_id},
    )
    return [ComputerShape.model_validate_json(row[0]) for row in rows]


def _rows(statement: LiteralString, parameters: dict[str, Any]) -> Sequence[Sequence[Any]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: Sequence[Sequence[Any]] = cursor.fetchall()
        return rows
