"""Telling the dead from the living, and making a death durable.

A runtime is dead when its lease has expired, or when its session advisory lock was missing at
two looks at least the grace apart with no renewal in between. Death is one committed step:
the burial. Afterwards nothing recomputes liveness, so a verdict cannot flip between check and
write.

Nobody is buried until the database has been seen unbroken for one lease (the pulse): after a
restart, a failover, an outage shared by all or a jump of its clock, everybody alive has time
to renew first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import structlog
from django.conf import settings
from django.db import ProgrammingError, connection, transaction

from recovery import bounds
from recovery.connections import application_name
from recovery.models import Cause
from recovery.redaction import describe

log = structlog.get_logger(__name__)

# A patient look sees every verdict fall within a lease and two graces; past that something is
# odd.
PATIENCE_MARGIN_SECONDS: Final = 5.0

# `pg_locks` is not part of the snapshot: it is read once, and shows the locks of this moment.
# A key is never probed by trying to take it, which would make the prober its holder.
_HELD_LOCKS: Final = """
    held AS MATERIALIZED (
        SELECT (classid::bigint << 32) | objid::bigint AS key, pid FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
"""
_LOCK_IS_MISSING: Final = """
    r.lock_key IS NOT NULL AND NOT EXISTS (
        SELECT FROM held WHERE held.key = r.lock_key AND held.pid = r.lock_backend_pid)
"""
# What keeps runtimes from renewing (an index being built on their table) must not let the pulse
# go on: the update of no row takes the same lock as a renewal. The pulse need not survive a
# crash of the server, since the gap a lost beat leaves buries nobody: its commit waits for no
# disk.
_BEAT: Final = """
    WITH as_a_renewal AS (UPDATE recovery_runtime SET stopped_at = stopped_at WHERE false)
    INSERT INTO recovery_pulse AS p (id, last_at, unbroken_since)
        SELECT 1, n, n FROM clock_timestamp() AS n
    ON CONFLICT (id) DO UPDATE SET
        unbroken_since = CASE
            WHEN p.last_at BETWEEN clock_timestamp() - make_interval(secs => %(broken)s)
                AND clock_timestamp() THEN p.unbroken_since
            ELSE clock_timestamp() END,
        last_at = clock_timestamp()
    WHERE %(always)s OR p.last_at NOT BETWEEN
        clock_timestamp() - make_interval(secs => %(every)s) AND clock_timestamp()
    RETURNING set_config('synchronous_commit', 'off', true)
"""
_SWEPT: Final = """
    UPDATE recovery_pulse SET swept_at = clock_timestamp()
    RETURNING set_config('synchronous_commit', 'off', true)
"""
_FIRST_LOOK: Final = f"""
    WITH {_HELD_LOCKS}
    UPDATE recovery_runtime AS r SET lock_missing_since = clock_timestamp()
    WHERE r.stopped_at IS NULL
        AND (r.lock_missing_since IS NULL OR r.lock_missing_since > clock_timestamp())
        AND {_LOCK_IS_MISSING}
    RETURNING r.id
"""  # noqa: S608
# The pulse is judged in the same statement as the verdict: a sweeper that slept since its
# beat buries nobody.
_BURY: Final = f"""
    WITH {_HELD_LOCKS}
    UPDATE recovery_runtime AS r SET stopped_at = clock_timestamp(), stop_reason = CASE
        WHEN r.lock_missing_since <= clock_timestamp() - make_interval(secs => %(grace)s)
            AND {_LOCK_IS_MISSING} THEN '{Cause.RUNTIME_LOST.value}'
        ELSE '{Cause.LEASE_EXPIRED.value}' END
    WHERE r.stopped_at IS NULL
        AND (r.lease_expires_at < clock_timestamp()
            OR (r.lock_missing_since <= clock_timestamp() - make_interval(secs => %(grace)s)
                AND {_LOCK_IS_MISSING}))
        AND EXISTS (SELECT FROM recovery_pulse AS p
            WHERE p.unbroken_since <= clock_timestamp() - make_interval(secs => %(lease)s)
            AND p.last_at BETWEEN clock_timestamp() - make_interval(secs => %(broken)s)
                AND clock_timestamp())
    RETURNING r.id, r.role, r.stop_reason
"""  # noqa: S608
_IN_DOUBT: Final = f"""
    WITH {_HELD_LOCKS}
    SELECT count(*) FROM recovery_runtime AS r WHERE r.stopped_at IS NULL
        AND (r.lease_expires_at < clock_timestamp() OR {_LOCK_IS_MISSING})
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Burial:
    """What a pass over the runtimes found. `elected`: no other process does this pass."""

    elected: bool
    buried: tuple[UUID, ...] = field(default=())


def pulse_every_seconds() -> float:
    """How often, at most, one process among all is elected to sweep."""
    return bounds.PULSE_SECONDS * float(settings.HOLDFAST_SWEEP_SECONDS)


def pulse_broken_after_seconds() -> float:
    """How old the last beat may be before the database counts as not having been watched."""
    return bounds.PULSE_BROKEN_AFTER_SECONDS * max(1.0, float(settings.HOLDFAST_SWEEP_SECONDS))


def keep_pulse(*, elect: bool = False) -> bool:
    """Record that the database is there; with `elect`, return False if it just was recorded.

    Never call it inside a transaction: that transaction's commit would not wait for the disk.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _BEAT,
            {
                "broken": pulse_broken_after_seconds(),
                "every": pulse_every_seconds(),
                "always": not elect,
            },
        )
        return cursor.fetchone() is not None


def record_sweep() -> None:
    """Record that a pass over everything has ended; the system check looks at it."""
    with connection.cursor() as cursor:
        cursor.execute(_SWEPT)


def bury(
    *,
    elect: bool = False,
    patient: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> Burial:
    """Bury every runtime that is dead, and end what is left of its database sessions.

    The pass that first misses a lock waits out the grace, outside any transaction, and looks
    again. With `patient` it also waits until no runtime is in doubt, at most about one lease.
    With `elect` it does nothing when another process has just begun a pass.
    """
    if not keep_pulse(elect=elect):
        return Burial(elected=False)
    missed = _look()
    buried = _bury()
    if missed - set(buried):
        wait(bounds.LOCK_GRACE_SECONDS)
        keep_pulse()
        buried += _bury()
    if patient:
        buried += _bury_in_doubt(wait)
    return Burial(elected=True, buried=tuple(buried))


def _bury_in_doubt(wait: Callable[[float], object]) -> list[UUID]:
    """Look again, once a second at most, until every runtime has renewed or is buried."""
    buried: list[UUID] = []
    patience = (
        settings.HOLDFAST_LEASE_SECONDS + bounds.LOCK_GRACE_SECONDS + PATIENCE_MARGIN_SECONDS
    )
    end = time.monotonic() + patience
    while time.monotonic() < end and in_doubt_count():
        wait(bounds.LOCK_GRACE_SECONDS / 2)
        keep_pulse()
        _look()
        buried += _bury()
    return buried


def in_doubt_count() -> int:
    """Return how many runtimes look dead at this moment. Changes nothing."""
    with connection.cursor() as cursor:
        cursor.execute(_IN_DOUBT)
        (count,) = cursor.fetchone()
        return int(count)


def _look() -> set[UUID]:
    """Mark the runtimes whose lock is missing now and was not before; return them."""
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_LOOK)
        return {runtime_id for (runtime_id,) in cursor.fetchall()}


def _bury() -> list[UUID]:
    with transaction.atomic(durable=True):
        pass  # refuses to run inside another transaction; one statement commits by itself
    with connection.cursor() as cursor:
        cursor.execute(
            _BURY,
            {
                "grace": bounds.LOCK_GRACE_SECONDS,
                "lease": float(settings.HOLDFAST_LEASE_SECONDS),
                "broken": pulse_broken_after_seconds(),
            },
        )
        dead = cursor.fetchall()
    for runtime_id, role, reason in dead:
        log.warning("runtime.buried", runtime_id=runtime_id, role=role, reason=reason)
    if dead:
        _end_sessions([application_name(role, runtime_id) for runtime_id, role, _ in dead])
    return [runtime_id for runtime_id, _, _ in dead]


def _end_sessions(names: Sequence[str]) -> None:
    """Terminate the sessions of the buried: one frozen in a transaction would keep its locks.

    Best effort: the fences stop a woken process, the idle-in-transaction timeout ends a
    frozen one.
    """
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = ANY(%s::text[]) "
                "AND pid <> pg_backend_pid()",
                [list(names)],
            )
            (count,) = cursor.fetchone()
    except ProgrammingError as error:  # another role's sessions: web and workers must use one
        log.warning("runtime.sessions_not_ended", reason=describe(error))
    else:
        log.info("runtime.sessions_ended", count=count)
