"""Rows that recovery could not settle: counted, held back, forgotten once they are settled."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import structlog
from django.db import connection

from recovery import bounds
from recovery.arrays import array
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.redaction import describe

log = structlog.get_logger(__name__)

FIRST_RETRY_SECONDS: Final = 5
# A row another session kept locked on this many passes in a row is worth an operator's look.
SKIPS_WORTH_A_REPORT: Final = 3


def held_back(kind: str) -> dict[int, bool]:
    """Return what is held against rows of `kind`: True while the next try is still to come."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT row_id, next_retry_at > clock_timestamp() "
            "FROM recovery_recoveryfailure WHERE kind = %s",
            [kind],
        )
        return dict(cursor.fetchall())


def record_failure(kind: str, row_id: int, error: Exception) -> ErrorCode:
    """Count a failure of one row and hold it back: 5 s, doubled each time, at most 10 min."""
    code = ErrorCode.INTERNAL_ERROR
    if isinstance(error, BoundExceeded | Refused | ProviderFailed):
        code = error.code
    reason = describe(error)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO recovery_recoveryfailure AS f (kind, row_id, error_code, reason, "
            "failed_count, skipped_count, first_at, last_at, next_retry_at) "
            "SELECT %(kind)s, %(row_id)s, %(code)s, %(reason)s, 1, 0, n, n, "
            "n + make_interval(secs => %(first)s) FROM clock_timestamp() AS n "
            "ON CONFLICT (kind, row_id) DO UPDATE SET error_code = excluded.error_code, "
            "reason = excluded.reason, failed_count = f.failed_count + 1, "
            "last_at = excluded.last_at, next_retry_at = excluded.last_at + make_interval("
            "secs => least(%(most)s, %(first)s * power(2, least(f.failed_count, 30)))) "
            "RETURNING failed_count",
            {
                "kind": kind,
                "row_id": row_id,
                "code": code.value,
                "reason": reason,
                "first": float(FIRST_RETRY_SECONDS),
                "most": float(bounds.FAILURE_BACKOFF_MAX_SECONDS),
            },
        )
        (count,) = cursor.fetchone()
    log.error(
        "recovery.row_failed",
        kind=kind,
        row_id=row_id,
        error_code=code.value,
        reason=reason,
        count=count,
        exc_info=error,
    )
    return code


def record_skips(kind: str, row_ids: Sequence[int]) -> None:
    """Count one more pass in a row that found these rows locked; report the third."""
    if not row_ids:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO recovery_recoveryfailure AS f (kind, row_id, error_code, reason, "
            "failed_count, skipped_count, first_at, last_at, next_retry_at) "
            "SELECT %s, row_id, '', '', 0, 1, n, n, n "
            "FROM unnest(%s::bigint[]) AS row_id, clock_timestamp() AS n "
            "ON CONFLICT (kind, row_id) DO UPDATE SET last_at = excluded.last_at, "
            "skipped_count = f.skipped_count + 1 RETURNING row_id, skipped_count",
            [kind, sorted(row_ids)],
        )
        for row_id, count in cursor.fetchall():
            if count == SKIPS_WORTH_A_REPORT:
                log.warning("recovery.row_stays_locked", kind=kind, row_id=row_id, count=count)


def clear(kind: str, row_ids: Iterable[int]) -> None:
    """Forget these rows, in the transaction that settles them."""
    _forget(kind, row_ids, "TRUE")


def forget_settled(kind: str, row_ids: Collection[int]) -> None:
    """After a whole pass, forget the rows that were due when it began and are no orphans.

    Not the rows that came due during the pass, nor those another pass has recorded meanwhile:
    this one has not looked at them.
    """
    if row_ids:
        _forget(kind, row_ids, "next_retry_at <= clock_timestamp()")


def _forget(kind: str, row_ids: Iterable[int], condition: str) -> None:
    """Delete by ascending row, as `record_skips` writes: another sweep may be at the same
    rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH held AS MATERIALIZED (SELECT id FROM recovery_recoveryfailure "  # noqa: S608
            f"WHERE kind = %s AND row_id = ANY(%s::bigint[]) AND {condition} "
            "ORDER BY row_id FOR UPDATE) "
            "DELETE FROM recovery_recoveryfailure WHERE id IN (SELECT id FROM held)",
            [kind, array(row_ids)],
        )
