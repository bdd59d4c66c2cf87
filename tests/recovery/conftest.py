"""Runtimes, real and made up, for the tests of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from tests.support.processes import RuntimeProcess

StartRuntime = Callable[..., RuntimeProcess]


@pytest.fixture
def watched_database(transactional_db: None) -> None:
    """The database has been seen without a gap for an hour: whoever is dead may be buried."""
    watch_database()


def watch_database() -> None:
    """Write the pulse of a database that was watched for an hour, up to this moment."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO recovery_pulse (id, last_at, unbroken_since) "
            "SELECT 1, n, n - interval '1 hour' FROM clock_timestamp() AS n "
            "ON CONFLICT (id) DO UPDATE SET last_at = excluded.last_at, "
            "unbroken_since = excluded.unbroken_since"
        )


@pytest.fixture
def start_runtime(
    process_environment: dict[str, str], tmp_path: Path
) -> Iterator[StartRuntime]:
    """Return a function that starts a real runtime process; all are gone after the test."""
    started: list[RuntimeProcess] = []

    def start(role: str = "worker", **settings: str) -> RuntimeProcess:
        process = RuntimeProcess(
            environment={**process_environment, **settings},
            log=tmp_path / f"runtime-{len(started)}.log",
            role=role,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close()
