"""Orphans are settled in bounded batches, once, with an event; a failing row stands alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg import errors

from recovery import bounds, runner
from recovery.fences import GENERATION_SHIFT_BITS
from recovery.models import RecoveryEvent, RecoveryFailure
from recovery.runner import Orphan, Settled
from tests.recovery.parcels import Depot, Label, Parcel, ParcelRecovery, parcel, parcel_tables
from tests.support.runtimes import age, runtime_row, watch_database

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def parcels() -> Iterator[None]:
    with parcel_tables():
        yield


@pytest.fixture
def recovery() -> ParcelRecovery:
    return ParcelRecovery()


def states() -> dict[int, str]:
    return dict(Parcel.objects.values_list("pk", "state"))


def test_an_orphan_and_its_children_end_in_one_transaction_with_an_event(
    recovery: ParcelRecovery,
) -> None:
    owner = runtime_row().pk
    orphan, owned = parcel(), parcel(owner=owner)

    report = recovery.settle_orphans()

    assert (report.examined, report.interrupted) == (1, 1)
    assert report.rows == [
        {
            "id": str(orphan.pk),
            "cause": "runtime_lost",
            "action": "interrupted",
            "error_code": "runtime_lost",
        }
    ]
    assert states() == {orphan.pk: "interrupted", owned.pk: "running"}
    assert set(Label.objects.values_list("parcel_id", "state")) == {
        (orphan.pk, "interrupted"),
        (owned.pk, "open"),
    }
    event = RecoveryEvent.objects.get()
    assert (event.kind, event.row_id, event.cause) == ("parcels", orphan.pk, "runtime_lost")
    assert (event.action, event.error_code) == ("interrupted", "runtime_lost")
    assert (event.generation, event.owner) == (1, orphan.owner)
    assert recovery.published == [orphan.pk]


def test_a_second_run_changes_nothing(recovery: ParcelRecovery) -> None:
    for _ in range(3):
        parcel()
    recovery.settle_orphans()
    before = list(Parcel.objects.order_by("pk").values())
    report = recovery.settle_orphans()
    assert report.examined == 0
    assert list(Parcel.objects.order_by("pk").values()) == before
    assert RecoveryEvent.objects.count() == 3


@pytest.mark.parametrize("reason", ["runtime_lost", "lease_expired", "runtime_stopped"])
def test_the_cause_is_how_the_owner_ended(recovery: ParcelRecovery, reason: str) -> None:
    owner = runtime_row()
    orphan = parcel(owner=owner.pk)
    assert recovery.settle_orphans().examined == 0
    owner.stopped_at, owner.stop_reason = owner.started_at, reason
    owner.save(update_fields=["stopped_at", "stop_reason"])
    assert recovery.settle_orphans().interrupted == 1
    orphan.refresh_from_db()
    assert orphan.error_code == reason


def test_a_row_whose_owner_lives_is_left_alone_however_long_it_runs(
    recovery: ParcelRecovery,
) -> None:
    """Failure H09: three leases after its claim, with the lease renewed."""
    owner = runtime_row()
    row = parcel(owner=owner.pk)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE parcels_parcel SET created_at = created_at - interval '45 s', "
                       "write_mark = write_mark + 1")  # fmt: skip
    assert recovery.settle_orphans().examined == 0
    assert states() == {row.pk: "running"}


def test_every_kind_that_is_swept_is_owned_by_a_runtime_that_renews() -> None:
    """Failure H09: whoever is swept for a dead owner has one, and a fence."""
    assert runner.registered()
    for recovery in runner.registered().values():
        columns = {field.name for field in recovery.model._meta.concrete_fields}
        assert columns >= {"owner", "generation", "write_mark", "claim_token", "deadline_at"}
        assert recovery.owned_states


def test_a_row_past_its_deadline_and_grace_is_an_orphan_of_a_living_owner(
    recovery: ParcelRecovery,
) -> None:
    owner = runtime_row().pk
    late = parcel(owner=owner, deadline_seconds=-bounds.DEADLINE_GRACE_SECONDS - 1)
    parcel(owner=owner, deadline_seconds=-bounds.DEADLINE_GRACE_SECONDS + 5)
    report = recovery.settle_orphans()
    assert [(row["id"], row["cause"]) for row in report.rows] == [
        (str(late.pk), "deadline_passed")
    ]


def test_a_row_nobody_claimed_is_dispatched_again_with_back_off(
    recovery: ParcelRecovery,
) -> None:
    waiting = parcel(state="queued", dispatch_seconds=-0.1)
    waits = []
    for _ in range(5):
        report = recovery.settle_orphans()
        assert (report.examined, report.redispatched) == (1, 1)
        assert recovery.settle_orphans().examined == 0
        waiting.refresh_from_db()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM next_dispatch_at - clock_timestamp())::float8 "
                "FROM parcels_parcel"
            )
            waits.append(cursor.fetchone()[0])
        _make_due(waiting.pk)
    assert waits == pytest.approx([15, 45, 135, 135, 135], abs=1)
    assert recovery.dispatched == [waiting.pk] * 5
    assert (waiting.state, waiting.dispatch_count) == ("queued", 5)
    assert RecoveryEvent.objects.count() == 0


def _make_due(pk: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE parcels_parcel SET next_dispatch_at = clock_timestamp(), "
            "write_mark = write_mark + 1 WHERE id = %s",
            [pk],
        )


def test_a_row_admitted_a_moment_ago_is_left_alone(recovery: ParcelRecovery) -> None:
    """Failure H10: the worker may be about to claim it."""
    parcel(state="queued", dispatch_seconds=bounds.ADMISSION_GRACE_SECONDS)
    assert recovery.settle_orphans().examined == 0


def test_a_row_past_its_queue_deadline_ends_as_never_started(recovery: ParcelRecovery) -> None:
    row = parcel(state="queued", dispatch_seconds=-60, queue_seconds=-0.1)
    assert recovery.settle_orphans().interrupted == 1
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("interrupted", "never_started")
    assert recovery.dispatched == []


def test_rows_are_settled_in_bounded_batches(recovery: ParcelRecovery) -> None:
    recovery.batch_rows = 4  # type: ignore[misc]
    for _ in range(10):
        parcel()
    assert recovery.settle_orphans().interrupted == 10
    assert recovery.batches == [4, 4, 2]


def test_a_limit_bounds_the_pass(recovery: ParcelRecovery) -> None:
    for _ in range(5):
        parcel()
    report = recovery.settle_orphans(limit=3)
    assert (report.examined, report.interrupted) == (3, 3)
    assert recovery.settle_orphans(limit=3).interrupted == 2


def test_a_dry_run_shows_every_orphan_and_changes_nothing(recovery: ParcelRecovery) -> None:
    lost, queued = parcel(), parcel(state="queued", dispatch_seconds=-1)
    report = recovery.settle_orphans(dry_run=True)
    assert report.examined == 2
    assert report.changed_count == 0
    assert {row["id"]: row["action"] for row in report.rows} == {
        str(lost.pk): "interrupted",
        str(queued.pk): "redispatched",
    }
    assert set(states().values()) == {"running", "queued"}
    assert RecoveryEvent.objects.count() == 0


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


def test_recovery_refuses_to_run_inside_another_transaction(recovery: ParcelRecovery) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError):
        recovery.settle_orphans()


def test_run_buries_first(recovery: ParcelRecovery) -> None:
    watch_database()
    owner = runtime_row(lease_seconds=-1)
    parcel(owner=owner.pk)
    report = recovery.run()
    assert [row["cause"] for row in report.rows] == ["lease_expired"]
