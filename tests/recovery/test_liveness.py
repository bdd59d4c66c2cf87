"""Who is dead, when they may be buried, and who does it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections, transaction

from recovery import bounds, liveness
from recovery.connections import application_name
from recovery.models import Pulse, Runtime
from tests.support.runtimes import age, runtime_row, stop_reason, watch_database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def never(_seconds: float) -> None:
    """Stands in for a wait that must not happen."""
    raise AssertionError("waited")


@pytest.fixture(autouse=True)
def grace_that_only_aging_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes from one look to the next."""
    monkeypatch.setattr(bounds, "LOCK_GRACE_SECONDS", 600.0)


@pytest.fixture
def session(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A second database session, as another process has it."""
    with psycopg.connect(database_url, autocommit=True) as other:
        yield other


def locked_runtime(session: psycopg.Connection[Any], **columns: Any) -> Runtime:
    """Return a runtime whose lock `session` holds."""
    (key,) = session.execute("SELECT nextval('recovery_runtime_lock_key')").fetchone() or (0,)
    session.execute("SELECT pg_advisory_lock(%s)", [key])
    return runtime_row(lock_key=key, lock_backend_pid=session.info.backend_pid, **columns)


def end(session: psycopg.Connection[Any]) -> None:
    """Close the session; return once the server has let go of its lock as well."""
    pid = session.info.backend_pid
    session.close()

    def gone() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid])
            return cursor.fetchone() is None

    wait_until(gone, "the server has ended the session")


def test_a_runtime_whose_lease_expired_is_buried() -> None:
    watch_database()
    runtime = runtime_row(lease_seconds=-0.1)
    assert liveness.bury(wait=never).buried == (runtime.pk,)
    assert stop_reason(runtime.pk) == "lease_expired"


def test_a_runtime_whose_lease_runs_is_left_alone() -> None:
    watch_database()
    runtime = runtime_row(lease_seconds=60)
    assert liveness.bury(wait=never).buried == ()
    assert stop_reason(runtime.pk) == ""


def test_a_runtime_that_holds_its_lock_is_left_alone(session: psycopg.Connection[Any]) -> None:
    watch_database()
    runtime = locked_runtime(session)
    assert liveness.bury(wait=never).buried == ()
    assert Runtime.objects.get(pk=runtime.pk).lock_missing_since is None


def test_a_missing_lock_is_looked_at_twice_with_the_grace_between(
    session: psycopg.Connection[Any],
) -> None:
    watch_database()
    runtime = locked_runtime(session)
    end(session)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert not connection.in_atomic_block
        assert stop_reason(runtime.pk) == ""
        age(Runtime, "lock_missing_since", seconds=seconds, id=runtime.pk)

    assert liveness.bury(wait=wait).buried == (runtime.pk,)
    assert waits == [bounds.LOCK_GRACE_SECONDS]
    assert stop_reason(runtime.pk) == "runtime_lost"


def test_a_second_look_before_the_grace_is_over_buries_nobody(
    session: psycopg.Connection[Any],
) -> None:
    watch_database()
    runtime = locked_runtime(session)
    end(session)
    assert liveness.bury(wait=lambda _: None).buried == ()
    assert liveness.bury(wait=never).buried == ()
    assert stop_reason(runtime.pk) == ""


def test_a_renewal_between_the_looks_saves_the_runtime(
    session: psycopg.Connection[Any], database_url: str
) -> None:
    watch_database()
    runtime = locked_runtime(session)
    end(session)
    with psycopg.connect(database_url, autocommit=True) as fresh:

        def reconnect(seconds: float) -> None:
            age(Runtime, "lock_missing_since", seconds=seconds, id=runtime.pk)
            fresh.execute("SELECT pg_advisory_lock(7)")
            fresh.execute(
                "UPDATE recovery_runtime SET lock_key = 7, lock_missing_since = NULL, "
                "lock_backend_pid = pg_backend_pid() WHERE id = %s",
                [runtime.pk],
            )

        assert liveness.bury(wait=reconnect).buried == ()
        assert liveness.bury(wait=never).buried == ()
    assert stop_reason(runtime.pk) == ""


def test_a_lock_of_another_backend_under_the_same_key_proves_nothing(
    session: psycopg.Connection[Any],
) -> None:
    watch_database()
    runtime = locked_runtime(session)
    Runtime.objects.filter(pk=runtime.pk).update(lock_backend_pid=1)
    liveness.bury(wait=lambda _: None)
    age(Runtime, "lock_missing_since", seconds=bounds.LOCK_GRACE_SECONDS, id=runtime.pk)
    assert liveness.bury(wait=never).buried == (runtime.pk,)


def test_a_two_key_lock_and_a_lock_of_another_database_prove_nothing(
    session: psycopg.Connection[Any], database_url: str
) -> None:
    watch_database()
    key = (5 << 32) | 6
    session.execute("SELECT pg_advisory_lock(5, 6)")
    two_keys = runtime_row(lock_key=key, lock_backend_pid=session.info.backend_pid)
    with psycopg.connect(database_url, dbname="postgres", autocommit=True) as elsewhere:
        elsewhere.execute("SELECT pg_advisory_lock(9)")
        other = runtime_row(lock_key=9, lock_backend_pid=elsewhere.info.backend_pid)
        liveness.bury(wait=lambda _: None)
    missed = Runtime.objects.filter(lock_missing_since__isnull=False)
    assert set(missed.values_list("pk", flat=True)) == {two_keys.pk, other.pk}


def test_an_expired_lease_buries_also_who_holds_its_lock(
    session: psycopg.Connection[Any],
) -> None:
    watch_database()
    runtime = locked_runtime(session, lease_seconds=-0.1)
    assert liveness.bury(wait=never).buried == (runtime.pk,)
    assert stop_reason(runtime.pk) == "lease_expired"


def test_nobody_is_buried_until_the_database_was_seen_unbroken_for_one_lease() -> None:
    lease = settings.HOLDFAST_LEASE_SECONDS
    dead = runtime_row(lease_seconds=-60)
    assert liveness.bury(wait=never).buried == ()  # the first look ever
    watch_database(for_seconds=lease / 2)
    assert liveness.bury(wait=never).buried == ()
    watch_database(for_seconds=lease)
    assert liveness.bury(wait=never).buried == (dead.pk,)


def test_a_gap_in_the_pulse_starts_the_lease_anew() -> None:
    watch_database()
    age(Pulse, "last_at", seconds=liveness.pulse_broken_after_seconds() + 0.1)
    dead = runtime_row(lease_seconds=-60)
    assert liveness.bury(wait=never).buried == ()
    assert stop_reason(dead.pk) == ""


def test_a_database_clock_that_jumped_back_counts_as_a_gap() -> None:
    watch_database()
    age(Pulse, "last_at", seconds=-600)
    runtime_row(lease_seconds=-60)
    assert liveness.bury(elect=True, wait=never) == liveness.Burial(elected=True)


def test_a_sweeper_that_slept_since_its_beat_buries_nobody() -> None:
    """The verdict judges the pulse itself, not what the beat said before a pause."""
    watch_database()
    runtime_row(lease_seconds=-60)
    liveness.keep_pulse()
    age(Pulse, "last_at", seconds=60)
    age(Pulse, "unbroken_since", seconds=60)
    assert liveness._bury() == []


def test_a_beat_waits_for_no_disk_and_everything_after_it_does() -> None:
    watch_database()
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        try:
            with transaction.atomic():
                liveness.keep_pulse()
                cursor.execute("SHOW synchronous_commit")
                assert cursor.fetchone() == ("off",)
            liveness.keep_pulse()
            liveness.record_sweep()
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("on",)
        finally:
            cursor.execute("RESET synchronous_commit")


def test_two_sweepers_elect_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # a rhythm in which none of them comes so late that it is the next one's turn
    monkeypatch.setattr(bounds, "PULSE_SECONDS", 600.0)
    watch_database()
    age(Pulse, "last_at", seconds=liveness.pulse_every_seconds() + 0.1)
    barrier = Barrier(4)

    def beat() -> bool:
        try:
            connection.ensure_connection()
            barrier.wait()
            return liveness.keep_pulse(elect=True)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        elected = [future.result() for future in [pool.submit(beat) for _ in range(4)]]
    assert sorted(elected) == [False, False, False, True]


def test_two_burials_at_once_bury_each_runtime_once() -> None:
    watch_database()
    dead = {runtime_row(lease_seconds=-1).pk for _ in range(20)}
    barrier = Barrier(2)

    def bury() -> tuple[Any, ...]:
        try:
            connection.ensure_connection()
            barrier.wait()
            return liveness.bury().buried
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        first, second = [future.result() for future in [pool.submit(bury) for _ in range(2)]]
    assert len(first) + len(second) == len(dead)
    assert {*first, *second} == dead


def test_a_burial_refuses_to_run_inside_another_transaction() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError):
        liveness.bury(wait=never)


def test_a_burial_ends_the_sessions_of_the_buried_and_no_others(database_url: str) -> None:
    watch_database()
    dead, alive = runtime_row(lease_seconds=-1), runtime_row(role="web")
    names = [application_name("worker", dead.pk), application_name("web", alive.pk)]
    theirs, other = (
        psycopg.connect(database_url, application_name=name, autocommit=True) for name in names
    )
    with other:
        liveness.bury(wait=never)
        with pytest.raises(psycopg.OperationalError):
            theirs.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)


def test_the_longest_name_of_a_session_is_not_cut(database_url: str) -> None:
    name = application_name("r" * 16, runtime_row().pk)
    with psycopg.connect(database_url, application_name=name) as named:
        assert named.execute("SHOW application_name").fetchone() == (name,)


def test_a_frozen_transaction_of_the_buried_hides_no_row(database_url: str) -> None:
    watch_database()
    dead = runtime_row(lease_seconds=-1)
    witness = runtime_row()
    frozen = psycopg.connect(database_url, application_name=application_name("worker", dead.pk))
    frozen.execute("SELECT FROM recovery_runtime WHERE id = %s FOR UPDATE", [witness.pk])
    seen = "SELECT id FROM recovery_runtime WHERE id = %s FOR UPDATE SKIP LOCKED"
    with connection.cursor() as cursor:
        cursor.execute(seen, [witness.pk])
        assert cursor.fetchall() == []
    liveness.bury(wait=never)
    with pytest.raises(psycopg.OperationalError):
        frozen.execute("SELECT 1")
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM recovery_runtime WHERE id = %s FOR UPDATE", [witness.pk])
        assert cursor.fetchall() == [(witness.pk,)]
    frozen.close()


def test_only_the_database_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failure H72: a sweeper ten minutes ahead or behind takes no living lease."""
    for skew in (600.0, -600.0):
        watch_database()
        alive, dead = runtime_row(lease_seconds=60), runtime_row(lease_seconds=-0.1)
        monkeypatch.setattr("time.time", lambda skew=skew: 1_800_000_000.0 + skew)
        assert liveness.bury(wait=never).buried == (dead.pk,)
        assert stop_reason(alive.pk) == ""


def test_a_patient_burial_waits_until_nobody_is_in_doubt() -> None:
    """The command run after every process has died: nobody has watched the database."""
    dead, renewed = runtime_row(lease_seconds=-60), runtime_row(lease_seconds=-60)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        with connection.cursor() as cursor:  # the other one is alive and gets through
            cursor.execute(
                "UPDATE recovery_runtime SET lease_expires_at = clock_timestamp() "
                "+ interval '15 s' WHERE id = %s",
                [renewed.pk],
            )
        age(Pulse, "unbroken_since", seconds=4)

    assert liveness.bury(patient=True, wait=wait).buried == (dead.pk,)
    assert len(waits) == 4
    assert stop_reason(renewed.pk) == ""
