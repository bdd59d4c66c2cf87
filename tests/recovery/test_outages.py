"""When the database goes away for everybody, nobody alive is buried."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from config.embedded.postgres import Postgres
from tests.support.private_postgres import DATABASE, answers, crash, private_postgres
from tests.support.processes import RuntimeProcess
from tests.support.waiting import wait_until

LEASE_SECONDS: Final = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    with private_postgres(tmp_path_factory.mktemp("private")) as postgres:
        yield postgres


def _environment(server: Postgres, home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": server.url(DATABASE),
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_LEASE_SECONDS": str(LEASE_SECONDS),
    }


@pytest.fixture
def runtimes(server: Postgres, tmp_path: Path) -> Iterator[list[RuntimeProcess]]:
    """Three living runtimes, each of them sweeping, on a database watched for long."""
    query(server, "DELETE FROM recovery_runtime RETURNING id")
    processes = [
        RuntimeProcess(environment=_environment(server, tmp_path), log=tmp_path / f"{n}.log")
        for n in range(3)
    ]
    try:
        for process in processes:
            process.wait_until_registered()
            process.say("sweep")
            process.expect("sweeping")
        wait_until(lambda: query(server, "SELECT 1 FROM recovery_pulse"), "the first pulse")
        query(
            server,
            "UPDATE recovery_pulse SET unbroken_since = last_at - interval '1 h' RETURNING 1",
        )
        yield processes
    finally:
        for process in processes:
            process.close()


def query(server: Postgres, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url(DATABASE), autocommit=True) as connection:
        return connection.execute(sql, values).fetchall()


def restart(server: Postgres) -> None:
    server.stop()
    server.start()


def outlast_the_lease(server: Postgres) -> None:
    server.stop()
    end = monotonic() + 1.4 * LEASE_SECONDS
    while monotonic() < end:
        sleep(0.1)  # time: the outage has to outlast the lease
    server.start()


@pytest.mark.parametrize("disturb", [restart, crash, outlast_the_lease])
def test_nobody_alive_is_buried_when_the_database_goes_away(
    server: Postgres, runtimes: list[RuntimeProcess], disturb: Callable[[Postgres], None]
) -> None:
    disturb(server)

    wait_until(lambda: answers(server), "the database answers again")
    (back_at,) = query(server, "SELECT clock_timestamp()")[0]
    # From here burials are possible again: the database was seen unbroken for one lease.
    wait_until(
        lambda: query(
            server,
            "SELECT 1 FROM recovery_pulse WHERE last_at - unbroken_since > "
            "make_interval(secs => %s) AND last_at - interval '2 s' > %s",
            LEASE_SECONDS,
            back_at,
        ),
        "burials are possible again",
    )
    assert living(server) == {process.id for process in runtimes}
    assert not any(process.heard("fenced") for process in runtimes)

    # And they do happen.
    victim = runtimes[0]
    victim.kill()
    wait_until(lambda: victim.id not in living(server), "the burial of one who is dead")
    reason = query(server, "SELECT stop_reason FROM recovery_runtime WHERE id = %s", victim.id)
    assert reason == [("runtime_lost",)]
    assert living(server) == {process.id for process in runtimes[1:]}


def living(server: Postgres) -> set[UUID]:
    rows = query(server, "SELECT id FROM recovery_runtime WHERE stopped_at IS NULL")
    return {runtime_id for (runtime_id,) in rows}


def test_a_process_that_cannot_reach_the_database_at_its_end_still_ends(
    server: Postgres, runtimes: list[RuntimeProcess]
) -> None:
    leaving = runtimes[0]
    server.stop()
    try:
        leaving.say("stop")
        leaving.expect("stopped")
        assert leaving.wait() == 0
    finally:
        server.start()
    wait_until(lambda: leaving.id not in living(server), "its burial by the others")
    assert living(server) == {process.id for process in runtimes[1:]}
