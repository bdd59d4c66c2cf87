"""A row that fails, is locked or is raced for stands alone; the others are settled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg import errors

from recovery import runner
from recovery.fences import GENERATION_SHIFT_BITS
from recovery.models import RecoveryEvent, RecoveryFailure
from recovery.runner import Orphan, Settled
from tests.recovery.parcels import Depot, Label, ParcelRecovery, parcel, states
from tests.support.runtimes import age, runtime_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("parcels")]


def test_a_poison_row_is_isolated_reported_and_held_back(recovery: ParcelRecovery) -> None:
    """Failure H05: one bad row never stops the sweep, and is counted."""
    good = [parcel() for _ in range(20)]
    bad = parcel(address="poison")
    good += [parcel() for _ in range(20)]

    report = recovery.settle_orphans()

    assert (report.examined, report.interrupted, report.failed) == (41, 40, 1)
    assert not report.all_settled
    assert {row["id"] for row in report.rows if row["action"] == "failed"} == {str(bad.pk)}
    assert states() == {**{row.pk: "interrupted" for row in good}, bad.pk: "running"}
    failure = RecoveryFailure.objects.get()
    assert (failure.kind, failure.row_id, failure.failed_count) == ("parcels", bad.pk, 1)
    assert (failure.error_code, failure.reason) == ("internal_error", "ValueError")
    assert recovery.settle_orphans().examined == 0


def test_a_poison_row_is_tried_again_with_a_bounded_back_off(recovery: ParcelRecovery) -> None:
    bad = parcel(address="poison")
    waits = []
    for count in range(1, 11):
        recovery.settle_orphans()
        failure = RecoveryFailure.objects.get()
        assert failure.failed_count == count
        waits.append((failure.next_retry_at - failure.last_at).total_seconds())
        age(RecoveryFailure, "next_retry_at", seconds=1_000)
    assert waits == [5, 10, 20, 40, 80, 160, 320, 600, 600, 600]
    assert states() == {bad.pk: "running"}


def test_what_was_held_against_a_row_goes_when_it_is_settled(recovery: ParcelRecovery) -> None:
    bad = parcel(address="poison")
    recovery.settle_orphans()
    age(RecoveryFailure, "next_retry_at", seconds=60)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE parcels_parcel DISABLE TRIGGER USER")
        cursor.execute("UPDATE parcels_parcel SET address = ''")
        cursor.execute("ALTER TABLE parcels_parcel ENABLE TRIGGER USER")
    assert recovery.settle_orphans().interrupted == 1
    assert not RecoveryFailure.objects.filter(row_id=bad.pk).exists()


def test_what_was_held_against_a_row_that_ended_otherwise_is_forgotten(
    recovery: ParcelRecovery,
) -> None:
    bad = parcel(address="poison")
    recovery.settle_orphans()
    age(RecoveryFailure, "next_retry_at", seconds=60)
    with transaction.atomic():
        Label.objects.all().delete()
        bad.delete()
    recovery.settle_orphans()
    assert RecoveryFailure.objects.count() == 0


def test_a_locked_row_is_skipped_and_the_third_time_reported(
    recovery: ParcelRecovery, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    locked, free = parcel(), parcel()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM parcels_parcel WHERE id = %s FOR UPDATE", [locked.pk])
        report = recovery.settle_orphans()
        assert (report.examined, report.interrupted, report.skipped) == (2, 1, 1)
        assert states() == {locked.pk: "running", free.pk: "interrupted"}
        for _ in range(2):
            assert recovery.settle_orphans().skipped == 1
    assert RecoveryFailure.objects.get().skipped_count == 3
    assert capsys.readouterr().err.count("recovery.row_stays_locked") == 1
    assert recovery.settle_orphans().interrupted == 1
    assert RecoveryFailure.objects.count() == 0


def test_a_row_of_a_locked_parent_is_skipped(
    recovery: ParcelRecovery, database_url: str
) -> None:
    row = parcel()
    with psycopg.connect(database_url) as other:
        other.execute(
            "SELECT FROM parcels_depot WHERE id = %s FOR NO KEY UPDATE", [row.depot_id]
        )
        assert recovery.settle_orphans().skipped == 1
    assert recovery.settle_orphans().interrupted == 1


def test_a_foreign_key_check_on_the_row_does_not_hide_it(
    recovery: ParcelRecovery, database_url: str
) -> None:
    row = parcel()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM parcels_parcel WHERE id = %s FOR KEY SHARE", [row.pk])
        assert recovery.settle_orphans().interrupted == 1


def test_a_row_that_is_no_orphan_any_more_under_its_lock_is_left_alone(
    recovery: ParcelRecovery, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure H30: what commits between the look and the lock wins."""
    row = parcel()
    lock = type(recovery._owned).lock

    def overtaken(self: object, batch: Sequence[Orphan]) -> set[int]:
        with psycopg.connect(database_url, autocommit=True) as owner:
            owner.execute(
                "UPDATE parcels_parcel SET state = 'failed', error_code = 'cancelled', "
                "finished_at = now(), write_mark = write_mark + 1 WHERE id = %s",
                [row.pk],
            )
        return lock(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(type(recovery._owned), "lock", overtaken)
    report = recovery.settle_orphans()
    assert (report.examined, report.interrupted, report.skipped) == (1, 0, 0)
    assert states() == {row.pk: "failed"}
    assert RecoveryEvent.objects.count() == 0


def test_a_claim_by_a_runtime_younger_than_the_look_wins(
    recovery: ParcelRecovery, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner registered and claimed after our first statement: it is seen all the same."""
    row = parcel(state="queued", queue_seconds=-1)
    lock = type(recovery._owned).lock

    def overtaken(self: object, batch: Sequence[Orphan]) -> set[int]:
        with ThreadPoolExecutor(1) as pool:
            owner = pool.submit(_register).result()
        with psycopg.connect(database_url, autocommit=True) as claimer:
            claimer.execute(
                "UPDATE parcels_parcel SET state = 'running', owner = %s, generation = 1, "
                "write_mark = 1::bigint << %s, deadline_at = now() + interval '1 h' "
                "WHERE id = %s",
                [owner, GENERATION_SHIFT_BITS, row.pk],
            )
        return lock(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(type(recovery._owned), "lock", overtaken)
    assert recovery.settle_orphans().changed_count == 0
    assert states() == {row.pk: "running"}


def _register() -> object:
    try:
        return runtime_row().pk
    finally:
        connections.close_all()


class Colliding(ParcelRecovery):
    """Meets a deadlock a few times before it gets through."""

    collisions = 2

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        if self.collisions:
            self.collisions -= 1
            raise OperationalError from errors.DeadlockDetected("deadlock")
        return super().settle(orphans)


def test_a_deadlock_is_retried() -> None:
    parcel()
    recovery = Colliding()
    assert recovery.settle_orphans().interrupted == 1
    assert RecoveryFailure.objects.count() == 0


def test_a_deadlock_that_does_not_end_is_retried_a_bounded_number_of_times() -> None:
    """Failure H77."""
    row = parcel()
    recovery = Colliding()
    recovery.collisions = 1_000
    assert recovery.settle_orphans().failed == 1
    assert recovery.collisions == 1_000 - runner.COLLISION_ATTEMPTS
    assert RecoveryFailure.objects.get(row_id=row.pk).reason == "OperationalError 40P01"


def test_a_lost_database_is_nobodys_fault(
    recovery: ParcelRecovery, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcel()
    settle = recovery.settle

    def cut(orphans: Sequence[Orphan]) -> Iterable[Settled]:
        assert connection.connection is not None
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid]
            )
        return settle(orphans)

    monkeypatch.setattr(recovery, "settle", cut)
    with pytest.raises(OperationalError):
        recovery.settle_orphans()
    connection.close()
    monkeypatch.undo()
    assert RecoveryFailure.objects.count() == 0
    assert recovery.settle_orphans().interrupted == 1


class Silent(ParcelRecovery):
    """Cannot reach anybody."""

    def publish(self, _settled: Sequence[Settled]) -> None:
        raise ConnectionError

    def dispatch(self, _pks: Sequence[int]) -> None:
        raise ConnectionError


def test_a_hint_that_cannot_be_sent_fails_nothing() -> None:
    parcel()
    parcel(state="queued", dispatch_seconds=-1)
    report = Silent().settle_orphans()
    assert (report.interrupted, report.redispatched, report.failed) == (1, 1, 0)


def test_two_recoveries_at_once_settle_each_row_once() -> None:
    """Failure H77: no deadlock, no row twice."""
    for _ in range(60):
        parcel()
    for _ in range(20):
        parcel(depot=Depot.objects.first())
    barrier = Barrier(2)

    def settle() -> runner.RecoveryReport:
        recovery = ParcelRecovery()
        recovery.batch_rows = 7  # type: ignore[misc]
        try:
            barrier.wait()
            return recovery.settle_orphans()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        reports = [future.result() for future in [pool.submit(settle) for _ in range(2)]]
    ParcelRecovery().settle_orphans()
    assert set(states().values()) == {"interrupted"}
    assert RecoveryEvent.objects.count() == 80
    assert RecoveryEvent.objects.values("row_id").distinct().count() == 80
    assert sum(report.failed for report in reports) == 0
