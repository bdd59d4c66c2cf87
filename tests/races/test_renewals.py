"""What holds a renewal up, or fails it, neither buries the living nor blinds the sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from recovery import liveness
from recovery.models import Pulse, Runtime
from recovery.runtimes import RuntimeKeeper
from tests.support.rivals import Rival, gate
from tests.support.runtimes import age, watch_database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def keeper(transactional_db: None) -> Iterator[RuntimeKeeper]:
    keeper = RuntimeKeeper("worker", on_fenced=lambda _: None, loops=())
    keeper.start()
    yield keeper
    keeper.stop()


@pytest.mark.parametrize("mode", ["SHARE", "ACCESS EXCLUSIVE"])
def test_the_pulse_stops_while_nobody_can_renew(database_url: str, mode: str) -> None:
    """An index is built on the runtimes for longer than a lease: all of them are alive."""
    watch_database()
    with gate(database_url, f"LOCK TABLE recovery_runtime IN {mode} MODE") as held:
        beat = Rival(liveness.keep_pulse).until_it_waits()
        age(Pulse, "last_at", seconds=liveness.pulse_broken_after_seconds() + 1)
        held.open()
        assert beat.result()
    pulse = Pulse.objects.get()
    assert (pulse.last_at - pulse.unbroken_since).total_seconds() < 1


def test_a_keeper_never_renews_without_its_lock(
    keeper: RuntimeKeeper, database_url: str
) -> None:
    """A runtime without a lock would be missed only when its lease is over."""
    runtime = Runtime.objects.get(pk=keeper.id)
    before = runtime.renewed_at
    # the next key cannot be drawn before this is open
    sequence = "ALTER SEQUENCE recovery_runtime_lock_key RENAME TO away"
    with gate(database_url, sequence) as held:
        run(f"SELECT pg_terminate_backend({runtime.lock_backend_pid})")
        wait_until(lambda: waiting_for(held.pid), "it draws a key")
        (drawing,) = waiting_for(held.pid)
        run(f"SELECT pg_cancel_backend({drawing})")
        wait_until(lambda: drawing not in waiting_for(held.pid), "it gave up")
        held.open()

    def renewed() -> bool:
        return Runtime.objects.filter(pk=runtime.pk, renewed_at__gt=before).exists()

    wait_until(renewed, "a renewal")
    runtime.refresh_from_db()
    assert runtime.lock_key is not None
    assert liveness.in_doubt_count() == 0


def waiting_for(pid: int) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))", [pid]
        )
        return [waiting for (waiting,) in cursor.fetchall()]


@pytest.fixture
def refused_renewals(transactional_db: None) -> Iterator[Callable[[], int]]:
    """Refuse every renewal; give how many there were. A sequence counts past a rollback."""
    run("CREATE SEQUENCE attempts MINVALUE 0 START 0")
    run("SELECT nextval('attempts')")
    run(
        "CREATE FUNCTION refuse_renewal() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM nextval('attempts'); RAISE 'refused'; END $$"
    )
    run(
        "CREATE TRIGGER refuse_renewal BEFORE UPDATE OF renewed_at ON recovery_runtime "
        "FOR EACH ROW EXECUTE FUNCTION refuse_renewal()"
    )

    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT last_value FROM attempts")
            return int(cursor.fetchone()[0])

    yield count
    run("DROP FUNCTION refuse_renewal CASCADE")
    run("DROP SEQUENCE attempts")


def test_a_keeper_whose_renewals_fail_pauses_between_them(
    keeper: RuntimeKeeper, refused_renewals: Callable[[], int]
) -> None:
    wait_until(refused_renewals, "the first failure")
    began, first = time.monotonic(), refused_renewals()
    wait_until(lambda: refused_renewals() >= first + 6, "six more failures")
    assert time.monotonic() - began > 0.3
