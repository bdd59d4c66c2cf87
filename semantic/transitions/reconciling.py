"""What was missed, lost or left over is put right: bounded, safe twice and side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction

from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK
from recovery.statements import run
from semantic import bounds
from semantic.models import Manifest
from semantic.models.jobs import lease_is_over
from semantic.transitions.activating import lag
from semantic.transitions.enqueuing import look_on
from semantic.transitions.giving_up import begin_anew

_MARKED: Final = f"""
    write_mark = (attempts::bigint << {GENERATION_SHIFT_BITS})
        | ((write_mark + 1) & {WRITE_COUNT_MASK})
"""
_EXHAUST: Final = f"""
    WITH spent AS MATERIALIZED (
        SELECT id FROM semantic_semanticjob
        WHERE state = 'running' AND {lease_is_over("lease_expires_at")}
            AND attempts >= {bounds.ATTEMPTS}
        ORDER BY id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
    ), done AS (
        UPDATE semantic_semanticjob SET state = 'failed', error_code = %(code)s,
            finished_at = statement_timestamp(), {_MARKED}
        WHERE id IN (SELECT id FROM spent)
        RETURNING id, message_id, manifest_id, attempts, error_code
    ), told AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code)
        SELECT d.id, d.message_id, p.generation, d.attempts, 'failed', d.error_code
        FROM done d JOIN semantic_manifest p ON p.id = d.manifest_id
    )
    SELECT id FROM done
"""  # noqa: S608  constants
_DUE: Final = """
    SELECT id, message_id FROM semantic_semanticjob
    WHERE retry_at <= statement_timestamp() ORDER BY retry_at, id LIMIT %s
"""
_HOLD_MESSAGES: Final = """
    SELECT id FROM turns_message WHERE id = ANY(%s) ORDER BY id FOR SHARE SKIP LOCKED
"""
_HOLD_DUE: Final = """
    SELECT id FROM semantic_semanticjob
    WHERE id = ANY(%(jobs)s) AND message_id = ANY(%(messages)s) AND retry_at IS NOT NULL
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
# Another follows only the last job of a message that still says the same.
_FOLLOW: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
            digest, state, error_code, round, attempts, write_mark)
    SELECT j.manifest_id, j.message_id, j.conversation_id, j.person_id, j.digest, 'queued', '',
        j.round + 1, 0, 0
    FROM semantic_semanticjob j JOIN turns_message m ON m.id = j.message_id
        JOIN semantic_manifest p ON p.id = j.manifest_id
    WHERE j.id = ANY(%s) AND m.digest = j.digest AND p.state <> 'retired' AND NOT EXISTS (
        SELECT FROM semantic_semanticjob n WHERE n.conversation_id = j.conversation_id
            AND n.message_id = j.message_id AND n.manifest_id = j.manifest_id AND n.id > j.id)
    ORDER BY j.id ON CONFLICT DO NOTHING
"""
_FOLLOWED: Final = f"""
    UPDATE semantic_semanticjob SET retry_at = NULL, {_MARKED} WHERE id = ANY(%s)
"""  # noqa: S608  constants
# By the indexes that begin with the manifest; what a retired one has ended otherwise stays.
_LEFT_OVER: Final = """
    SELECT NULL, j.id FROM semantic_manifest p JOIN LATERAL (
        SELECT id FROM semantic_semanticjob WHERE manifest_id = p.id
            AND state IN ('queued', 'running') LIMIT %(limit)s
    ) AS j ON true WHERE p.state = 'retired'
    UNION ALL
    SELECT e.id, e.job_id FROM semantic_manifest p JOIN LATERAL (
        SELECT id, job_id FROM semantic_embedding WHERE manifest_id = p.id LIMIT %(limit)s
    ) AS e ON true WHERE p.state = 'retired'
    LIMIT %(limit)s
"""
# Whoever edits or removes a message holds its jobs when he comes to its vectors.
_HOLD_LEFT_OVER: Final = """
    SELECT id FROM semantic_semanticjob WHERE id = ANY(%s) ORDER BY id FOR UPDATE SKIP LOCKED
"""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What one look came to: messages enqueued that had been missed, failures followed by
    another job, jobs given up as each attempt was lost, and rows of retired manifests removed
    or of stale derivatives derived anew. `more` says that another look would find more."""

    enqueued: int
    retried: int
    exhausted: int
    cleared: int
    more: bool


def reconcile() -> Reconciled:
    """Make one bounded look for missing, expired and left-over rows."""
    exhausted = _exhaust()
    due, retried = _retry()
    retried += _begin_anew()
    left, cleared = _clear_retired()
    enqueued = 0
    covered = True
    living = Manifest.objects.exclude(state=Manifest.State.RETIRED)
    for pk in living.order_by("pk").values_list("pk", flat=True):
        looked = look_on(pk)
        enqueued += looked.enqueued + looked.repaired
        cleared += looked.repaired
        covered = covered and looked.covered
    more = not covered or bounds.RECONCILE_ROWS in {exhausted, due, left}
    return Reconciled(enqueued, retried, exhausted, cleared, more)


def _exhaust() -> int:
    """End jobs whose last attempt was lost as well."""
    code = ErrorCode.SEMANTIC_ATTEMPTS_EXHAUSTED.value
    return len(run(_EXHAUST, {"limit": bounds.RECONCILE_ROWS, "code": code}, prepared=False))


@transaction.atomic(durable=True)
def _retry() -> tuple[int, int]:
    """Let another job follow each failure that has cooled down; return how many were due, and
    followed."""
    with connection.cursor() as cursor:
        cursor.execute(_DUE, [bounds.RECONCILE_ROWS])
        due = cursor.fetchall()
        if not due:
            return 0, 0
        cursor.execute(_HOLD_MESSAGES, [[message_id for _, message_id in due]])
        messages = [pk for (pk,) in cursor.fetchall()]
        jobs = [pk for pk, _ in due]
        cursor.execute(_HOLD_DUE, {"jobs": jobs, "messages": messages})
        held = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(_FOLLOW, [held])
        retried = cursor.rowcount
        cursor.execute(_FOLLOWED, [held])
    return len(due), retried


def _begin_anew() -> int:
    """Let another round begin for what keeps the manifest being built from taking over, once
    all else of it has settled; return for how many messages."""
    building = Manifest.objects.filter(state=Manifest.State.BUILDING)
    waiting = [pk for pk in building.values_list("pk", flat=True) if lag(pk).is_over]
    return sum(begin_anew(pk) for pk in waiting)


@transaction.atomic(durable=True)
def _clear_retired() -> tuple[int, int]:
    """Remove vectors of retired manifests with their jobs, and jobs nobody claims any more;
    return how many were found, and removed."""
    with connection.cursor() as cursor:
        cursor.execute(_LEFT_OVER, {"limit": bounds.RECONCILE_ROWS})
        found = cursor.fetchall()
        if not found:
            return 0, 0
        jobs = sorted({job_id for _, job_id in found})
        cursor.execute(_HOLD_LEFT_OVER, [jobs])
        held = {pk for (pk,) in cursor.fetchall()}
        vectors = [pk for pk, job_id in found if pk is not None and job_id in held]
        cursor.execute("DELETE FROM semantic_embedding WHERE id = ANY(%s)", [vectors])
        cursor.execute("DELETE FROM semantic_semanticjob WHERE id = ANY(%s)", [sorted(held)])
    return len(found), len(held)
