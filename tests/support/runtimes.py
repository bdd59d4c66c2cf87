"""Runtime rows and pulses as the database would show them. Ages are on the database's clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection

from recovery.errors import StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from recovery.serving import ServingLoop
from tests.factories import RuntimeFactory
from tests.support.waiting import wait_until


def watch_database(*, for_seconds: float = 3_600) -> None:
    """Write the pulse of a database that was seen without a gap until this moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO recovery_pulse (id, last_at, unbroken_since) "
            "SELECT 1, n, n - make_interval(secs => %s) FROM clock_timestamp() AS n "
            "ON CONFLICT (id) DO UPDATE SET last_at = excluded.last_at, "
            "unbroken_since = excluded.unbroken_since",
            [for_seconds],
        )


def age(model: type[Any], column: str, *, seconds: float, **which: Any) -> None:
    """Move a time of the rows `which` into the past."""
    with connection.cursor() as cursor:
        table, quote = model._meta.db_table, connection.ops.quote_name
        keys = " AND ".join(f"{quote(key)} = %s" for key in which) or "TRUE"
        cursor.execute(
            f"UPDATE {table} SET {quote(column)} = {quote(column)} "
            f"- make_interval(secs => %s) WHERE {keys}",
            [seconds, *which.values()],
        )


def runtime_row(*, lease_seconds: float = 15.0, **columns: Any) -> Runtime:
    """Return a living runtime row without a process; its lease ends in `lease_seconds`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT clock_timestamp(), clock_timestamp() + make_interval(secs => %s)",
            [lease_seconds],
        )
        now, lease_expires_at = cursor.fetchone()
    defaults: dict[str, Any] = {
        "id": uuid4(),
        "role": "worker",
        "host_id": "host",
        "host": "host",
        "pid": 1,
        "boot_id": "boot",
        "started_at": now,
        "renewed_at": now,
        "lease_expires_at": lease_expires_at,
    }
    return Runtime.objects.create(**{**defaults, **columns})


def wait_until_unlocked(database_url: str, pid: int) -> None:
    """Return when the session that held the lock of this process's runtime is gone.

    On busy cores the server's process may take a while to read that its client is dead.
    """
    with psycopg.connect(database_url, autocommit=True) as session:
        held = (
            "SELECT count(*) FROM recovery_runtime AS r JOIN pg_stat_activity AS a "
            "ON a.pid = r.lock_backend_pid WHERE r.pid = %s"
        )
        wait_until(
            lambda: session.execute(held, [pid]).fetchone() == (0,),
            "the end of the killed process's session",
        )


def stop_reason(runtime_id: UUID) -> str:
    """Return how the runtime ended, or an empty text while it lives."""
    return Runtime.objects.get(pk=runtime_id).stop_reason


def looks_of(host: ServingLoop[Any], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each look of the host from now on, once it is over, found something."""
    looks: list[bool] = []
    look = host._noteworthy

    def noted(fences: Sequence[Fence]) -> dict[int, bool]:
        found = look(fences)
        looks.append(bool(found))
        return found

    monkeypatch.setattr(host, "_noteworthy", noted)
    return looks


class Owner:
    """Gives the runtime id to claim under; None is a runtime that was fenced."""

    def __init__(self) -> None:
        self.runtime: Runtime | None = RuntimeFactory.create()
        self.beats = 0

    def __call__(self) -> Any:
        if self.runtime is None:
            raise StaleFence
        return self.runtime.pk

    def beat(self) -> None:
        self.beats += 1
