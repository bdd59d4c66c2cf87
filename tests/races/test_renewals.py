"""What holds a renewal up, or fails it, neither buries the living nor blinds the sweep."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from django.db import connection
from structlog.testing import capture_logs

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
    keeper = RuntimeKeeper("worker", on_fenced=lambda _: None, watch_loop=False)
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


def test_a_keeper_never_renews_without_its_lock(keeper: RuntimeKeeper) -> None:
    """A runtime without a lock would be missed only when its lease is over."""
    runtime = Runtime.objects.get(pk=keeper.id)
    run("ALTER SEQUENCE recovery_runtime_lock_key RENAME TO away")
    try:
        with capture_logs() as logs:
            run(f"SELECT pg_terminate_backend({runtime.lock_backend_pid})")
            wait_until(lambda: len(logs) >= 4, "it tried to take a lock")
    finally:
        run("ALTER SEQUENCE away RENAME TO recovery_runtime_lock_key")
    before = runtime.renewed_at
    runtime.refresh_from_db()
    assert runtime.lock_key is not None

    wait_until(
        lambda: Runtime.objects.filter(pk=runtime.pk, renewed_at__gt=before).exists(),
        "a renewal",
    )
    runtime.refresh_from_db()
    assert runtime.lock_key is not None
    assert liveness.in_doubt_count() == 0


def test_a_keeper_whose_renewals_fail_pauses_between_them(keeper: RuntimeKeeper) -> None:
    run("ALTER TABLE recovery_runtime RENAME lease_expires_at TO away")
    try:
        with capture_logs() as logs:
            wait_until(lambda: logs, "the first failure")
            began = time.monotonic()
            wait_until(lambda: len(logs) >= 6, "five more failures")
            assert time.monotonic() - began > 0.3
    finally:
        run("ALTER TABLE recovery_runtime RENAME away TO lease_expires_at")
