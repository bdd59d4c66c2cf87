"""Jobs by the thousand, each in a conversation of its id, made with the triggers off."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from django.db import connection
from django.db.backends.utils import CursorWrapper

from tests.benchmarks.fill import unguarded
from turns.digests import digest
from work.limits import JobLimits
from work.prompts import prompt

# A short request, as a person would write one.
GOAL: Final = (
    "Look through what we decided about the move to the new office since the spring, list the "
    "open questions with who is to answer each, and say which of them hold up others.".ljust(
        200
    )
)
TABLES: Final = (
    "turns_conversation", "turns_message", "work_workjob", "work_workproviderstep",
    "work_workstep", "work_jobreport", "work_jobreportmessage", "recovery_recoveryevent",
)  # fmt: skip
CLEAR: Final = f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY CASCADE"
# What admission stores of a request: the floors' and the peers' rows carry it as well.
PAYLOAD: Final[dict[str, Any]] = {
    "kind": "deep_work",
    "goal": GOAL,
    "context": "",
    "prompt": prompt(GOAL, ""),
    "model": "scripted",
    "authority": json.dumps({"agent": ""}),
    "budget": json.dumps(JobLimits().snapshot()),
    "request_digest": digest(GOAL),
}
PAYLOAD_BYTES: Final = sum(len(value) for value in PAYLOAD.values())

_CONVERSATIONS: Final = """
    INSERT INTO turns_conversation (id, owner_id, title, revision, rewritten_revision)
    SELECT %(first)s + n, %(person)s, '', 1, 0 FROM generate_series(0, %(jobs)s - 1) AS n
"""
_JOBS: Final = """
    INSERT INTO work_workjob (id, person_id, conversation_id, kind, goal, context, prompt,
        agent, cwd, host_id, model, wall_clock_seconds, authority, budget, before_message_id,
        request_digest, state, error_code, owner, generation, claim_token, write_mark, attempts,
        planned_releases, queue_deadline_at, next_dispatch_at, dispatch_count, acp_session_id,
        acp_cursor, base_commit, branch, claimed_at, deadline_at)
    SELECT %(first)s + n, %(person)s, %(first)s + n, %(kind)s, %(goal)s, %(context)s,
        %(prompt)s, '', '', '', %(model)s, 600, %(authority)s, %(budget)s, 1,
        %(request_digest)s, CASE WHEN %(running)s THEN 'running' ELSE 'queued' END, '',
        CASE WHEN %(running)s THEN
            (%(owners)s::uuid[])[1 + n %% cardinality(%(owners)s::uuid[])] END,
        %(generation)s, CASE WHEN %(running)s THEN gen_random_uuid() END,
        %(generation)s::bigint << 32, %(attempts)s, 0, now() + interval '1 hour', now(), 0, '',
        0, '', '', CASE WHEN %(running)s THEN now() END,
        CASE WHEN %(running)s THEN now() + interval '10 minutes' END
    FROM generate_series(0, %(jobs)s - 1) AS n
"""
_PROVIDER_STEPS: Final = """
    INSERT INTO work_workproviderstep (id, job_id, generation, sequence, state, error_code,
        model, request_digest, request_bytes, offers_tools, anomaly_count, text)
    SELECT %(first)s + n, %(first)s + n, %(generation)s, 1, 'started', '', 'scripted',
        %(request_digest)s, 12, true, 0, '' FROM generate_series(0, %(jobs)s - 1) AS n
"""
# one that waits to be started and one that runs
_STEPS: Final = """
    INSERT INTO work_workstep (job_id, provider_step_id, generation, write_mark, sequence,
        state, error_code, call_id, item_id, name, effect, arguments, arguments_digest,
        invocation_key, result, result_digest, result_bytes, started_at)
    SELECT %(first)s + n, %(first)s + n, %(generation)s, %(generation)s::bigint << 32, s,
        CASE s WHEN 1 THEN 'running' ELSE 'requested' END, '', 'call-' || s, '',
        'search_history', 'read', '{"query": "x"}', %(request_digest)s, gen_random_uuid(), '',
        '', 0, CASE s WHEN 1 THEN now() END
    FROM generate_series(0, %(jobs)s - 1) AS n, generate_series(1, 2) AS s
"""


def queued(jobs: int, *, first: int, person: int) -> None:
    """Add jobs that wait, with the ids from `first` on, as admission leaves them."""
    _fill((_CONVERSATIONS, _JOBS), jobs, first=first, person=person)


def running(
    jobs: int, *, first: int, person: int, owners: Sequence[UUID], attempts: int = 1
) -> None:
    """Add running jobs with a provider step that is open and two calls, of such owners."""
    _fill(
        (_CONVERSATIONS, _JOBS, _PROVIDER_STEPS, _STEPS),
        jobs,
        first=first,
        person=person,
        owners=owners,
        attempts=attempts,
    )


def _fill(
    statements: Sequence[str],
    jobs: int,
    *,
    first: int,
    person: int,
    owners: Sequence[UUID] = (),
    attempts: int = 0,
) -> None:
    values: dict[str, Any] = {
        **PAYLOAD,
        "jobs": jobs,
        "first": first,
        "person": person,
        "running": bool(owners),
        "owners": [str(owner) for owner in owners],
        "attempts": attempts,
        # a release and a claim raise it by two
        "generation": 2 * attempts - 1 if attempts else 0,
    }
    with unguarded() as cursor:
        for statement in statements:
            cursor.execute(statement, values)
        analyze(cursor)


def analyze(cursor: CursorWrapper) -> None:
    """Give the planner its statistics."""
    for table in TABLES:
        cursor.execute(f"ANALYZE {table}")


def empty() -> None:
    """Remove every row of the jobs' tables."""
    with connection.cursor() as cursor:
        cursor.execute(CLEAR)
