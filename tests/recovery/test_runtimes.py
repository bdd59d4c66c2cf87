"""A keeper registers its process, renews it, notices losses, fences itself, and ends it."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection
from django.db.models import F
from pytest_django.fixtures import Settings

from recovery import bounds, hosts
from recovery.errors import StaleFence
from recovery.models import Runtime
from recovery.runtimes import RuntimeKeeper, current_runtime_id
from tests.support.runtimes import stop_reason
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

Start = Callable[..., RuntimeKeeper]
# What is not waited for here.
FAR_SECONDS = 600.0


@pytest.fixture
def fenced() -> queue.Queue[UUID]:
    return queue.Queue()


@pytest.fixture
def start(fenced: queue.Queue[UUID]) -> Iterator[Start]:
    keepers: list[RuntimeKeeper] = []

    def make(role: str = "worker", **options: Any) -> RuntimeKeeper:
        options = {"on_fenced": fenced.put, "loops": (), **options}
        keeper = RuntimeKeeper(role, **options)
        keepers.append(keeper)
        keeper.start()
        return keeper

    yield make
    for keeper in keepers:
        keeper.stop()


def row(keeper: RuntimeKeeper) -> Runtime:
    return Runtime.objects.get(pk=keeper.id)


def run(sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else []


def bury(runtime_id: UUID) -> None:
    run(
        "UPDATE recovery_runtime SET stopped_at = now(), stop_reason = 'lease_expired' "
        "WHERE id = %s",
        runtime_id,
    )


def wait_for_renewal(runtime: Runtime) -> Runtime:
    wait_until(
        lambda: Runtime.objects.get(pk=runtime.pk).renewed_at > runtime.renewed_at, "a renewal"
    )
    return Runtime.objects.get(pk=runtime.pk)


def test_start_returns_when_the_row_is_committed(start: Start) -> None:
    keeper = start("web")
    runtime = row(keeper)
    assert (runtime.role, runtime.pid, runtime.stopped_at) == ("web", os.getpid(), None)
    assert (runtime.host_id, runtime.boot_id) == (hosts.host_id(), hosts.boot_id())
    assert runtime.lease_expires_at - runtime.renewed_at == timedelta(seconds=15)
    assert current_runtime_id() == keeper.id


def test_a_living_runtime_holds_the_lock_its_row_names(start: Start) -> None:
    runtime = row(start())
    assert runtime.lock_key is not None
    assert run(
        "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks "
        "WHERE locktype = 'advisory' AND objsubid = 1 AND granted AND pid = %s",
        runtime.lock_backend_pid,
    ) == [(runtime.lock_key,)]


def test_a_renewal_moves_the_lease_and_forgets_a_missed_lock(start: Start) -> None:
    keeper = start()
    before = row(keeper)
    Runtime.objects.filter(pk=before.pk).update(lock_missing_since=F("started_at"))
    after = wait_for_renewal(before)
    assert after.lease_expires_at > before.lease_expires_at
    assert (after.lock_key, after.lock_missing_since) == (before.lock_key, None)


def test_a_renewal_does_not_ask_whether_the_lease_is_over(
    start: Start, fenced: queue.Queue[UUID]
) -> None:
    keeper = start()
    before = row(keeper)
    Runtime.objects.filter(pk=before.pk).update(
        lease_expires_at=F("lease_expires_at") - timedelta(hours=1)
    )
    after = wait_for_renewal(before)
    assert after.lease_expires_at > after.renewed_at
    assert fenced.empty()


def test_a_refused_renewal_fences_and_registers_anew(
    start: Start, fenced: queue.Queue[UUID]
) -> None:
    seen: list[UUID | None] = []

    def on_fenced(old: UUID) -> None:
        seen.append(current_runtime_id())
        fenced.put(old)

    keeper = start(on_fenced=on_fenced)
    old = keeper.id
    bury(old)
    assert fenced.get(timeout=60) == old
    wait_until(lambda: keeper.runtime_id is not None, "a new registration")
    assert keeper.id != old
    assert current_runtime_id() == keeper.id
    assert seen == [None]  # nothing is claimed while the process lets go
    assert stop_reason(old) == "lease_expired"
    assert set(Runtime.objects.living().values_list("pk", flat=True)) == {keeper.id}


def test_a_fencing_that_raises_does_not_keep_the_process_from_registering_anew(
    start: Start,
) -> None:
    def on_fenced(_old: UUID) -> None:
        raise ValueError

    keeper = start(on_fenced=on_fenced)
    old = keeper.id
    bury(old)
    wait_until(lambda: keeper.runtime_id not in {None, old}, "a new registration")


def test_a_runtime_without_an_id_claims_nothing(start: Start) -> None:
    keeper = start()
    keeper.stop()
    assert keeper.runtime_id is None
    assert current_runtime_id() is None
    with pytest.raises(StaleFence):
        _ = keeper.id


def test_stop_ends_the_row_and_releases_the_lock(start: Start) -> None:
    keeper = start()
    runtime = row(keeper)
    keeper.stop()
    keeper.stop()
    assert stop_reason(runtime.pk) == "runtime_stopped"
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    wait_until(lambda: not run(held, runtime.lock_backend_pid), "the lock goes")


def test_stop_does_not_overwrite_a_burial(start: Start) -> None:
    keeper = start()
    runtime_id = keeper.id
    bury(runtime_id)
    keeper.stop()
    assert stop_reason(runtime_id) == "lease_expired"


def test_a_cut_session_is_noticed_at_once_and_replaced_under_a_new_key(
    start: Start, fenced: queue.Queue[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "RENEW_SECONDS", FAR_SECONDS)
    keeper = start()
    before = row(keeper)
    run("SELECT pg_terminate_backend(%s)", before.lock_backend_pid)
    wait_until(lambda: row(keeper).lock_key != before.lock_key, "a new session")
    assert row(keeper).lock_backend_pid != before.lock_backend_pid
    assert fenced.empty()


def test_a_key_that_somebody_else_holds_is_passed_over(start: Start, database_url: str) -> None:
    (last,) = run("SELECT last_value FROM recovery_runtime_lock_key")[0]
    with psycopg.connect(database_url, autocommit=True) as other:
        for key in range(last, last + 4):
            other.execute("SELECT pg_advisory_lock(%s)", [key])
        assert row(start()).lock_key not in range(last, last + 4)


def test_a_renewal_that_fails_on_a_sound_session_keeps_its_lock(
    start: Start, database_url: str, fenced: queue.Queue[UUID]
) -> None:
    keeper = start()
    before = row(keeper)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM recovery_runtime WHERE id = %s FOR UPDATE", [before.pk])
        wait_until(
            lambda: run("SELECT pg_cancel_backend(%s) FROM pg_locks "
                        "WHERE pid = %s AND NOT granted",
                        before.lock_backend_pid, before.lock_backend_pid),
            "the renewal waits and is cancelled",
        )  # fmt: skip
    after = wait_for_renewal(before)
    assert after.lock_key == before.lock_key
    assert fenced.empty()


def test_a_process_with_a_loop_that_does_not_tick_is_not_renewed_until_all_tick_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LOOP_TICK_MAX_AGE_SECONDS", 0.5)
    keeper = start(loops=("turns", "jobs"))
    turn, found_old = keeper._loops_turn, threading.Event()

    def looked() -> bool:
        if turn():
            return True
        found_old.set()
        return False

    monkeypatch.setattr(keeper, "_loops_turn", looked)
    assert found_old.wait(60)  # its own thread, which renews nothing at that moment
    before, every = row(keeper), bounds.RENEW_SECONDS
    # from here on a renewal that only waits for its time does not come
    monkeypatch.setattr(bounds, "RENEW_SECONDS", FAR_SECONDS)
    quiet = threading.Event()
    assert not quiet.wait(2 * every)
    assert row(keeper).renewed_at == before.renewed_at
    # one of two is not enough
    keeper.beat_loop("turns")
    assert not turn()

    def renewed() -> bool:
        for loop in ("turns", "jobs"):
            keeper.beat_loop(loop)
        return row(keeper).renewed_at > before.renewed_at

    wait_until(renewed, "a renewal as soon as all tick")


def test_lease_liveness_takes_no_lock(start: Start, settings: Settings) -> None:
    settings.HOLDFAST_LIVENESS = "lease"
    runtime = row(start())
    assert (runtime.lock_key, runtime.lock_backend_pid) == (None, None)
    wait_for_renewal(runtime)


def test_the_keeper_uses_the_direct_address_where_there_is_one(
    start: Start, settings: Settings, database_url: str
) -> None:
    """Failure H74: behind a transaction pooler the lock is held on a session of our own."""
    settings.DIRECT_DATABASE_URL = database_url
    assert row(start()).lock_key is not None


def test_a_database_that_is_away_at_the_start_is_reported(settings: Settings) -> None:
    settings.DIRECT_DATABASE_URL = "postgresql://nobody@127.0.0.1:1/nothing"
    keeper = RuntimeKeeper("worker", on_fenced=lambda _: None)
    with pytest.raises(TimeoutError):
        keeper.start(timeout_seconds=0.3)
    assert current_runtime_id() is None


def test_a_role_is_a_word() -> None:
    for role in ("", "Web", "web 1", "x" * 17):
        with pytest.raises(ValueError, match="role"):
            RuntimeKeeper(role, on_fenced=lambda _: None)


def test_the_host_is_this_machine_and_this_home(settings: Settings) -> None:
    here = hosts.host_id()
    assert here == hosts.host_id()
    settings.HOLDFAST_HOME = "/elsewhere"
    assert hosts.host_id() != here
    assert len(here) == 64
