"""Settings that contradict each other are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.apps.config import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import DatabaseError, connections
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from recovery import bounds, liveness

# A renewal may be late by a reconnect and a busy moment without costing the lease.
RENEWALS_PER_LEASE: Final = 4
# A row hidden by a frozen transaction comes free within one lease.
SWEEP_OLD_SECONDS: Final = 60
LIVENESS_CHOICES: Final = ("lock", "lease")


@register()
def settings_agree(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Return an error for each pair of settings that cannot hold together."""
    del app_configs
    lease, sweep = settings.HOLDFAST_LEASE_SECONDS, settings.HOLDFAST_SWEEP_SECONDS
    found: list[CheckMessage] = []

    def refuse(number: int, problem: str, hint: str) -> None:
        found.append(Error(problem, hint=hint, id=f"recovery.E{number:03}"))

    if lease < RENEWALS_PER_LEASE * bounds.RENEW_SECONDS:
        refuse(
            1,
            f"HOLDFAST_LEASE_SECONDS={lease:g} is too short for a renewal each "
            f"{bounds.RENEW_SECONDS:g} s: one late renewal would bury a living process.",
            f"Set it to {RENEWALS_PER_LEASE * bounds.RENEW_SECONDS:g} or more (default 15).",
        )
    if not 0 < sweep <= lease / 3:
        refuse(
            2,
            f"HOLDFAST_SWEEP_SECONDS={sweep:g} does not fit HOLDFAST_LEASE_SECONDS={lease:g}: "
            "the database must be seen several times in a lease before anybody is buried.",
            "Set it above 0 and to at most a third of the lease (default 1).",
        )
    # The longest outage that does not break the pulse, the age of the renewal before it and the
    # reconnect after it must fit into one lease.
    unnoticed = liveness.pulse_broken_after_seconds() + 2 * bounds.RENEW_SECONDS
    if lease < unnoticed:
        refuse(
            3,
            f"HOLDFAST_LEASE_SECONDS={lease:g} is shorter than {unnoticed:g} s: an outage that "
            "nobody counts as one would pass for deaths.",
            "Raise HOLDFAST_LEASE_SECONDS or lower HOLDFAST_SWEEP_SECONDS.",
        )
    if lease <= bounds.LOCK_GRACE_SECONDS + sweep:
        refuse(
            4,
            f"HOLDFAST_LEASE_SECONDS={lease:g} runs out before a missing lock was looked at "
            "twice.",
            "Raise HOLDFAST_LEASE_SECONDS.",
        )
    if settings.HOLDFAST_LIVENESS not in LIVENESS_CHOICES:
        refuse(
            5,
            "HOLDFAST_LIVENESS must be one of " + ", ".join(LIVENESS_CHOICES) + ".",
            "Unset it to use session locks.",
        )
    elif (
        settings.HOLDFAST_LIVENESS == "lock"
        and settings.DATABASE_POOLED
        and not settings.DIRECT_DATABASE_URL
    ):
        refuse(
            6,
            "DATABASE_POOLED is on and there is no DIRECT_DATABASE_URL: a transaction pooler "
            "hands a session lock to strangers.",
            "Set DIRECT_DATABASE_URL to the database itself, or HOLDFAST_LIVENESS=lease.",
        )
    return [*found, *_sessions_end_within(lease), *_isolation_is_not_chosen()]


def _sessions_end_within(lease_seconds: float) -> list[CheckMessage]:
    """Return an error where a vanished peer is noticed later than its lease ends."""
    options: dict[str, Any] = connections["default"].settings_dict["OPTIONS"]
    idle, interval, count = (
        int(options.get(f"keepalives_{name}", 0)) for name in ("idle", "interval", "count")
    )
    silent = idle + interval * count
    if 0 < silent < lease_seconds:
        return []
    return [
        Error(
            f"The database connection's TCP keepalives notice a vanished peer after "
            f"{silent} s or never, its lease ends after {lease_seconds:g} s.",
            hint="Set keepalives_idle + keepalives_interval * keepalives_count below it.",
            id="recovery.E007",
        )
    ]


def _isolation_is_not_chosen() -> list[CheckMessage]:
    """Return an error where Django is told to begin transactions at another isolation level."""
    options: dict[str, Any] = connections["default"].settings_dict["OPTIONS"]
    level = options.get("isolation_level", IsolationLevel.READ_COMMITTED)
    return [] if level == IsolationLevel.READ_COMMITTED else [_snapshots_grow_old(8)]


@register(Tags.database)
def transactions_see_what_is_committed(
    app_configs: Sequence[AppConfig] | None, *, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Return an error where the server begins transactions at another isolation level."""
    del app_configs
    if not databases or "default" not in databases:
        return []
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT current_setting('default_transaction_isolation')")
            [(level,)] = cursor.fetchall()
    except DatabaseError:  # away: other checks say so
        return []
    return [] if level == "read committed" else [_snapshots_grow_old(9)]


def _snapshots_grow_old(number: int) -> CheckMessage:
    return Error(
        "Transactions are not at READ COMMITTED: one that waited for a lock would not see what "
        "it waited for.",
        hint="Remove isolation_level from the OPTIONS of the database, and "
        "default_transaction_isolation from DATABASE_URL, the role and the database.",
        id=f"recovery.E{number:03}",
    )


@register(Tags.database)
def sweeps_happen(
    app_configs: Sequence[AppConfig] | None, *, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Return a warning when work is open and no sweep has ended for a minute."""
    del app_configs
    if not databases or "default" not in databases:
        return []
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT swept_at IS NULL OR swept_at < clock_timestamp() "
                "- make_interval(secs => %s) FROM recovery_pulse",
                [SWEEP_OLD_SECONDS],
            )
            row = cursor.fetchone()
    except DatabaseError:  # not migrated yet, or away: other checks say so
        return []
    if row is None or not row[0]:
        return []
    return [
        checks.Warning(
            f"No sweep has ended for {SWEEP_OLD_SECONDS} s: work of dead processes is not "
            "recovered.",
            hint="Start a worker or the web process, or run manage.py recover_turns.",
            id="recovery.W001",
        )
    ]
