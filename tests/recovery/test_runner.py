"""Orphans are settled in bounded batches, once, with an event."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from recovery import bounds, runner
from recovery.models import RecoveryEvent
from tests.recovery.parcels import Label, Parcel, ParcelRecovery, parcel, states
from tests.support.runtimes import runtime_row, watch_database

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("parcels")]


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


def test_recovery_refuses_to_run_inside_another_transaction(recovery: ParcelRecovery) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError):
        recovery.settle_orphans()


def test_run_buries_first(recovery: ParcelRecovery) -> None:
    watch_database()
    owner = runtime_row(lease_seconds=-1)
    parcel(owner=owner.pk)
    report = recovery.run()
    assert [row["cause"] for row in report.rows] == ["lease_expired"]
