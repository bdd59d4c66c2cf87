"""Orphans that are released for another claim: once, fenced, in bounded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import IntegrityError, connection
from django.db.models.functions import Now

from recovery import bounds, failures
from recovery.errors import StaleFence
from recovery.fences import NEXT_MARK_SQL
from recovery.models import RecoveryEvent, RecoveryFailure, Runtime
from recovery.runner import Orphan, Settled
from recovery.switches import State, set_release
from tests.recovery.errands import (
    EagerRecovery,
    Errand,
    ErrandRecovery,
    Leg,
    claim,
    errand,
    errand_tables,
    every_errand,
    fence_of,
    finish,
    move_leg,
    request_leg,
)
from tests.support.rivals import Rival, gate
from tests.support.runtimes import age, runtime_row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def errands() -> Iterator[None]:
    with errand_tables():
        yield


@pytest.fixture
def recovery() -> ErrandRecovery:
    return ErrandRecovery()


def bury(owner: UUID) -> None:
    Runtime.objects.filter(pk=owner).update(stopped_at=Now(), stop_reason="runtime_lost")


def legs(row: Errand) -> list[tuple[str, int]]:
    return list(
        Leg.objects.filter(errand=row).order_by("pk").values_list("state", "generation")
    )


def run(sql: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)


def test_a_released_row_waits_for_a_claim_under_a_new_generation(
    recovery: ErrandRecovery,
) -> None:
    orphan = errand()

    report = recovery.settle_orphans()

    assert (report.examined, report.adopted, report.redispatched) == (1, 1, 0)
    assert report.rows == [
        {
            "id": str(orphan.pk),
            "cause": "runtime_lost",
            "action": "adopted",
            "error_code": "",
        }
    ]
    row = Errand.objects.get()
    assert (row.state, row.owner, row.claim_token) == ("queued", None, None)
    assert (row.generation, row.write_mark) == (2, 2 << 32)
    assert legs(row) == [("requested", 2), ("interrupted", 1)]
    event = RecoveryEvent.objects.get()
    assert (event.action, event.error_code, event.cause) == ("adopted", "", "runtime_lost")
    assert (event.generation, event.owner) == (1, orphan.owner)
    assert (recovery.published, recovery.dispatched) == ([orphan.pk], [orphan.pk])


def test_a_second_run_leaves_the_released_rows_alone(recovery: ErrandRecovery) -> None:
    for _ in range(3):
        errand()
    assert recovery.settle_orphans().adopted == 3
    before = list(every_errand())
    assert recovery.settle_orphans().examined == 0
    assert list(every_errand()) == before


def test_a_pass_does_not_take_up_what_it_has_released_itself() -> None:
    """It is due again at once, and shows among the waiting of the next look."""
    recovery = EagerRecovery()
    recovery.batch_rows = 4  # type: ignore[misc]
    rows = [errand().pk for _ in range(12)]
    report = recovery.settle_orphans()
    assert (report.examined, report.adopted, report.redispatched) == (12, 12, 0)
    assert sorted(recovery.published) == rows
    assert recovery.dispatched == []
    assert set(Errand.objects.values_list("generation", "dispatch_count")) == {(2, 0)}

    report = recovery.settle_orphans()
    assert (report.examined, report.adopted, report.redispatched) == (12, 0, 12)
    assert sorted(recovery.dispatched) == rows
    assert recovery.settle_orphans().examined == 0


def test_a_limit_counts_a_released_row_once() -> None:
    recovery = EagerRecovery()
    recovery.batch_rows = 2  # type: ignore[misc]
    for _ in range(5):
        errand()
    assert recovery.settle_orphans(limit=3).adopted == 3
    report = recovery.settle_orphans(limit=3)
    assert (report.examined, report.adopted, report.redispatched) == (3, 2, 1)


def test_a_dry_run_over_orphans_and_waiting_rows_releases_nothing(
    recovery: ErrandRecovery,
) -> None:
    recovery.batch_rows = 2  # type: ignore[misc]
    for _ in range(3):
        errand()
        errand(state="queued", dispatch_seconds=-1)
    errand(state="queued", queue_seconds=-1)
    before = list(every_errand())
    report = recovery.settle_orphans(dry_run=True)
    assert (report.examined, report.changed_count) == (7, 0)
    actions = [row["action"] for row in report.rows]
    assert {name: actions.count(name) for name in actions} == {
        "adopted": 3,
        "redispatched": 3,
        "interrupted": 1,
    }
    assert list(every_errand()) == before
    assert recovery.settle_orphans(dry_run=True, limit=3).examined == 3


def test_a_poison_row_does_not_keep_its_neighbours_from_being_released(
    recovery: ErrandRecovery,
) -> None:
    rows = [errand(address="poison" if n == 7 else "").pk for n in range(16)]
    bad = rows.pop(7)
    waiting = errand(state="queued", dispatch_seconds=-1).pk

    report = recovery.settle_orphans()

    assert report.examined == 17
    assert (report.adopted, report.redispatched, report.failed) == (15, 1, 1)
    assert set(Errand.objects.filter(pk__in=rows).values_list("state", "generation")) == {
        ("queued", 2)
    }
    assert Errand.objects.get(pk=bad).generation == 1
    assert Errand.objects.get(pk=waiting).dispatch_count == 1
    assert RecoveryFailure.objects.get().row_id == bad
    assert sorted(RecoveryEvent.objects.values_list("row_id", flat=True)) == rows
    assert recovery.settle_orphans().examined == 0


def test_a_row_that_the_commit_refuses_stands_alone_too(
    recovery: ErrandRecovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deferred foreign key speaks at the commit, after everything was written."""
    run(
        "CREATE TEMPORARY TABLE errands_known (id bigint PRIMARY KEY); CREATE TEMPORARY TABLE "
        "errands_late (id bigint REFERENCES errands_known DEFERRABLE INITIALLY DEFERRED)"
    )
    rows = [errand().pk for _ in range(8)]
    bad = rows.pop(3)
    settle = recovery.settle

    def refused_later(orphans: Sequence[Orphan]) -> Iterable[Settled]:
        settled = list(settle(orphans))
        if bad in [orphan.pk for orphan in orphans]:
            run("INSERT INTO errands_late VALUES (0)")
        return settled

    monkeypatch.setattr(recovery, "settle", refused_later)
    report = recovery.settle_orphans()
    assert (report.examined, report.adopted, report.failed) == (8, 7, 1)
    assert sorted(recovery.published) == sorted(recovery.dispatched) == rows
    assert RecoveryFailure.objects.get().row_id == bad
    assert RecoveryFailure.objects.get().reason.startswith("IntegrityError 23503")
    assert sorted(RecoveryEvent.objects.values_list("row_id", flat=True)) == rows
    run("DROP TABLE errands_late, errands_known")


def test_what_was_held_against_a_row_goes_when_it_is_released(
    recovery: ErrandRecovery,
) -> None:
    bad = errand(address="poison")
    recovery.settle_orphans()
    age(RecoveryFailure, "next_retry_at", seconds=60)
    run("ALTER TABLE errands_errand DISABLE TRIGGER USER")
    run("UPDATE errands_errand SET address = ''")
    run("ALTER TABLE errands_errand ENABLE TRIGGER USER")
    assert recovery.settle_orphans(limit=1).adopted == 1
    assert not RecoveryFailure.objects.filter(row_id=bad.pk).exists()


def test_a_living_owner_past_its_deadline_is_fenced_by_the_release(
    recovery: ErrandRecovery,
) -> None:
    owner = runtime_row().pk
    late = errand(owner=owner, deadline_seconds=-bounds.DEADLINE_GRACE_SECONDS - 1)
    fence = fence_of(late)
    requested, _ = Leg.objects.order_by("pk").values_list("pk", flat=True)

    report = recovery.settle_orphans()

    assert [(row["cause"], row["action"]) for row in report.rows] == [
        ("deadline_passed", "adopted")
    ]
    assert RecoveryEvent.objects.get().owner == owner
    for act in (
        lambda: finish(fence),
        lambda: request_leg(fence),
        lambda: move_leg(fence, requested, "running"),
    ):
        with pytest.raises(StaleFence):
            act()
    again = claim(late.pk, owner=owner)
    assert again is not None
    assert again.generation == 3
    assert legs(late) == [("requested", 3), ("interrupted", 1)]
    with pytest.raises(StaleFence):
        finish(fence)
    move_leg(again, requested, "running")
    finish(again)


@pytest.mark.parametrize("adoptions", [1, 2, 3])
def test_a_row_is_adopted_as_often_as_its_attempts_allow(
    recovery: ErrandRecovery, adoptions: int
) -> None:
    row = errand(state="queued")
    for _ in range(adoptions):
        owner = runtime_row().pk
        assert claim(row.pk, owner=owner) is not None
        bury(owner)
        recovery.settle_orphans()
    row.refresh_from_db()
    events = list(RecoveryEvent.objects.order_by("pk").values_list("generation", "action"))
    expected = [(2 * n + 1, "adopted") for n in range(adoptions)]
    if adoptions == bounds.ADOPTION_ATTEMPTS:
        expected[-1] = (expected[-1][0], "interrupted")
        assert (row.state, row.error_code) == ("interrupted", "adoption_attempts_exhausted")
    else:
        assert (row.state, row.generation) == ("queued", 2 * adoptions)
    assert events == expected


def test_a_released_row_nobody_claims_ends_as_not_adopted(recovery: ErrandRecovery) -> None:
    row = errand()
    recovery.settle_orphans()
    run(
        "UPDATE errands_errand SET queue_deadline_at = now() - interval '1 s', "
        f"write_mark = {NEXT_MARK_SQL}"
    )
    assert recovery.settle_orphans().interrupted == 1
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("interrupted", "not_adopted")
    event = RecoveryEvent.objects.latest("pk")
    assert (event.generation, event.owner, event.cause) == (2, None, "not_adopted")


def test_an_orphan_that_was_to_be_cancelled_is_not_released(recovery: ErrandRecovery) -> None:
    row = errand(cancelled=True)
    assert recovery.settle_orphans().interrupted == 1
    row.refresh_from_db()
    assert (row.state, row.error_code) == ("cancelled", "cancelled")


def test_a_row_released_while_its_kind_is_disabled_is_due_when_it_is_resumed() -> None:
    recovery = EagerRecovery()
    row, owner = errand(), runtime_row().pk
    set_release("errands", State.DISABLED)
    assert recovery.settle_orphans().adopted == 1
    assert recovery.settle_orphans().examined == 0
    assert claim(row.pk, owner=owner) is None
    set_release("errands", State.OPEN)
    assert recovery.settle_orphans().redispatched == 1
    assert claim(row.pk, owner=owner) is not None


def test_a_row_orphaned_again_in_the_same_pass_waits_for_the_next(
    recovery: ErrandRecovery,
) -> None:
    """Its new owner dies before the pass is over."""
    recovery.batch_rows = 1  # type: ignore[misc]
    row, other = errand(), errand()

    def claim_and_die(pks: Sequence[int]) -> None:
        if not recovery.batches[1:]:
            owner = runtime_row().pk
            assert claim(pks[0], owner=owner) is not None
            bury(owner)

    recovery.dispatch = claim_and_die  # type: ignore[method-assign]
    report = recovery.settle_orphans()
    assert (report.examined, report.adopted) == (2, 2)
    assert sorted(map(tuple, recovery.batches)) == [(row.pk,), (other.pk,)]
    assert recovery.settle_orphans().adopted == 1
    assert set(Errand.objects.values_list("state", flat=True)) == {"queued"}


def test_a_release_without_a_new_generation_is_refused() -> None:
    row = errand()
    with pytest.raises(IntegrityError, match="errands_errand_release_is_fenced"):
        run(
            "UPDATE errands_errand SET state = 'queued', owner = NULL, claim_token = NULL, "
            f"write_mark = {NEXT_MARK_SQL} WHERE id = %s",
            row.pk,
        )


class TestChildrenThatSurviveAnAdoption:
    @pytest.fixture
    def leg(self, recovery: ErrandRecovery) -> Leg:
        """As its worker remembers it from before the release."""
        errand(legs=["requested"])
        remembered: Leg = Leg.objects.get()
        recovery.settle_orphans()
        return remembered

    def test_the_old_owner_writes_to_none(self, leg: Leg) -> None:
        with pytest.raises(IntegrityError, match="errands_leg_fence_presented"):
            run(
                "UPDATE errands_leg SET state = 'running', write_mark = (1::bigint << 32) | 1 "
                "WHERE id = %s",
                leg.pk,
            )

    def test_a_writer_that_shows_no_mark_is_refused(self, leg: Leg) -> None:
        with pytest.raises(IntegrityError, match="errands_leg_fence"):
            run("UPDATE errands_leg SET state = 'running' WHERE id = %s", leg.pk)

    def test_a_stale_save_of_the_whole_row_is_refused(self, leg: Leg) -> None:
        """It brings back its old generation and a mark that fits it."""
        leg.state = "running"
        leg.write_mark += 1
        with pytest.raises(IntegrityError, match="errands_leg_generation"):
            leg.save()

    def test_none_is_added_under_the_old_generation(self, leg: Leg) -> None:
        with pytest.raises(IntegrityError, match="errands_leg_child_fence"):
            Leg.objects.create(
                errand_id=leg.errand_id, generation=1, write_mark=1 << 32, text="late"
            )


def test_a_second_chance_for_locked_rows_keeps_to_the_bound_of_a_batch(
    recovery: ErrandRecovery, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery.batch_rows = 4  # type: ignore[misc]
    for _ in range(10):
        errand()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM errands_errand FOR NO KEY UPDATE")
        monkeypatch.setattr("recovery.runner.time.sleep", lambda _: other.rollback())
        report = recovery.settle_orphans()
    assert (report.examined, report.adopted, report.skipped) == (10, 10, 0)
    assert [len(batch) for batch in recovery.batches] == [4, 4, 2]


def test_a_failure_that_comes_due_during_a_pass_is_not_forgotten(
    recovery: ErrandRecovery,
) -> None:
    """It was held back when the pass began, so the pass has not looked at its row."""
    bad = errand(address="poison")
    recovery.settle_orphans()
    errand()

    def time_passes(settled: Sequence[Settled]) -> None:
        assert settled
        age(RecoveryFailure, "next_retry_at", seconds=60)

    recovery.publish = time_passes  # type: ignore[method-assign]
    assert recovery.settle_orphans().adopted == 1
    assert RecoveryFailure.objects.get().row_id == bad.pk
    assert recovery.settle_orphans().failed == 1
    assert RecoveryFailure.objects.get().failed_count == 2


def test_a_skip_that_another_sweep_records_is_not_forgotten(recovery: ErrandRecovery) -> None:
    errand(address="poison")
    recovery.settle_orphans()
    age(RecoveryFailure, "next_retry_at", seconds=60)
    errand()

    def another_sweep(settled: Sequence[Settled]) -> None:
        assert settled
        RecoveryFailure.objects.create(kind="errands", row_id=0, skipped_count=1)

    recovery.publish = another_sweep  # type: ignore[method-assign]
    recovery.settle_orphans()
    assert RecoveryFailure.objects.filter(row_id=0).exists()


def test_skips_are_counted_though_the_report_lists_no_more_rows(
    recovery: ErrandRecovery, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.reports.REPORT_ROWS_MAX", 0)
    errand()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM errands_errand FOR NO KEY UPDATE")
        for _ in range(2):
            assert recovery.settle_orphans().skipped == 1
    assert RecoveryFailure.objects.get().skipped_count == 2


def test_two_sweeps_write_down_failures_of_the_same_rows_without_a_deadlock(
    recovery: ErrandRecovery, database_url: str
) -> None:
    """One forgets what it settles, the other counts what it found locked."""
    first, second = errand(), errand()
    for row in (second, first):
        RecoveryFailure.objects.create(kind="errands", row_id=row.pk, skipped_count=1)
    run("ANALYZE recovery_recoveryfailure")  # so few rows are read in the order they lie in
    held_row = "SELECT FROM recovery_recoveryfailure WHERE row_id = %s FOR UPDATE"
    with gate(database_url, held_row, second.pk) as held:
        settling = Rival(recovery.settle_orphans).until_it_waits()
        skipping = Rival(
            lambda: failures.record_skips("errands", [first.pk, second.pk])
        ).until_it_waits()
        held.open()

    assert skipping.error() is None
    assert settling.result().adopted == 2
    assert len(recovery.batches) == 1, "it had to try again"
