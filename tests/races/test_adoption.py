"""A release against a claim, a cancel, the old owner and another sweep, in both orders, on real
sessions; and all of them at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from uuid import UUID

import pytest
from django.db.models import F
from django.db.models.functions import Now

from recovery.bounds import DEADLINE_GRACE_SECONDS
from recovery.errors import StaleFence
from recovery.fences import Fence
from recovery.models import RecoveryEvent, RecoveryFailure, Runtime
from recovery.reports import RecoveryReport
from tests.recovery.errands import (
    EagerRecovery,
    Errand,
    ErrandRecovery,
    Leg,
    Yard,
    cancel,
    claim,
    errand,
    errand_tables,
    every_errand,
    fence_of,
    finish,
    move_leg,
    request_leg,
)
from tests.support.rivals import Gate, Rival, gate
from tests.support.runtimes import runtime_row

pytestmark = pytest.mark.django_db(transaction=True)

GateOn = Callable[[str, Errand], AbstractContextManager[Gate]]


@pytest.fixture(autouse=True)
def errands() -> Iterator[None]:
    with errand_tables():
        yield


@pytest.fixture
def gate_on(database_url: str) -> GateOn:
    """Return a function that holds the errand (its yard is locked then), or its legs (and then
    the errand as well)."""
    rows = {
        "errand": "SELECT FROM errands_errand WHERE id = %s FOR UPDATE",
        "legs": "SELECT FROM errands_leg WHERE errand_id = %s FOR UPDATE",
    }
    return lambda row, held: gate(database_url, rows[row], held.pk)


@pytest.fixture
def orphan() -> Errand:
    return errand()


def sweep() -> RecoveryReport:
    return EagerRecovery().settle_orphans()


def claiming(row: Errand, owner: UUID | None = None) -> Callable[[], Fence | None]:
    owner = owner or runtime_row().pk
    return lambda: claim(row.pk, owner=owner)


def bury(owner: UUID) -> None:
    Runtime.objects.filter(pk=owner).update(stopped_at=Now(), stop_reason="runtime_lost")


def now(row: Errand) -> Errand:
    found: Errand = Errand.objects.get(pk=row.pk)
    return found


class TestTwoSweeps:
    def test_the_second_leaves_alone_what_the_first_is_releasing(
        self, orphan: Errand, gate_on: GateOn
    ) -> None:
        with gate_on("legs", orphan) as held:
            first = Rival(sweep).until_it_waits()
            second = Rival(sweep).result()
            held.open()

        assert (second.examined, second.skipped, second.adopted) == (1, 1, 0)
        assert first.result().adopted == 1
        assert now(orphan).generation == 2
        assert RecoveryEvent.objects.count() == 1
        assert sweep().redispatched == 1  # the hint for the release
        before = list(every_errand())
        assert sweep().examined == 0
        assert list(every_errand()) == before
        assert not RecoveryFailure.objects.exists()

    def test_what_was_released_between_look_and_lock_is_not_released_again(
        self, orphan: Errand
    ) -> None:
        recovery, report = ErrandRecovery(), RecoveryReport("errands")
        selected = recovery._owned.look(limit=10)
        Rival(ErrandRecovery().settle_orphans).result()

        assert recovery._settle_batch(selected, report) == []

        assert (report.adopted, report.redispatched, report.failed) == (0, 0, 0)
        assert now(orphan).generation == 2
        assert RecoveryEvent.objects.count() == 1

    def test_an_orphan_of_a_later_generation_is_released_as_such(self, orphan: Errand) -> None:
        """Between look and lock it was released, claimed and orphaned again."""
        recovery, report = ErrandRecovery(), RecoveryReport("errands")
        selected = recovery._owned.look(limit=10)
        Rival(sweep).result()
        owner = runtime_row().pk
        assert Rival(claiming(orphan, owner)).result() is not None
        bury(owner)

        recovery._settle_batch(selected, report)

        assert report.adopted == 1
        assert now(orphan).generation == 4
        event = RecoveryEvent.objects.latest("pk")
        assert (event.generation, event.owner) == (3, owner)


class TestReleaseAndClaim:
    def test_release_first_the_claim_adopts_the_row(
        self, orphan: Errand, gate_on: GateOn
    ) -> None:
        with gate_on("legs", orphan) as held:
            first = Rival(sweep).until_it_waits()
            second = Rival(claiming(orphan)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().adopted == 1
        fence = second.result()
        assert fence is not None
        assert (fence.generation, now(orphan).attempts) == (3, 2)
        legs = Leg.objects.order_by("pk").values_list("state", "generation")
        assert list(legs) == [("requested", 3), ("interrupted", 1)]

    def test_a_claim_before_the_release_gets_nothing(
        self, orphan: Errand, gate_on: GateOn
    ) -> None:
        with gate_on("errand", orphan) as held:
            first = Rival(claiming(orphan)).until_it_waits()
            assert sweep().skipped == 1
            held.open()

        assert first.result() is None
        assert sweep().adopted == 1

    def test_a_claim_under_way_when_its_runtime_is_buried_leaves_an_orphan(
        self, gate_on: GateOn
    ) -> None:
        row, owner = errand(state="queued"), runtime_row().pk
        with gate_on("errand", row) as held:
            first = Rival(claiming(row, owner)).until_it_waits()
            bury(owner)
            held.open()

        assert first.result() is None  # its own statement comes after the burial
        assert now(row).state == "queued"

    def test_a_claim_overtaken_by_the_burial_is_released_by_the_next_pass(
        self, database_url: str
    ) -> None:
        """It has read its runtime's row and waits at the legs when the burial commits."""
        row, owner = errand(), runtime_row().pk
        sweep()
        with gate(database_url, "SELECT FROM errands_leg FOR UPDATE") as held:
            first = Rival(claiming(row, owner)).until_it_waits()
            bury(owner)
            second = sweep()
            held.open()

        fence = first.result()
        assert fence is not None
        assert second.changed_count == 0
        assert sweep().adopted == 1
        assert now(row).generation == 4
        with pytest.raises(StaleFence):
            finish(fence)

    def test_a_hint_again_and_a_claim_do_not_both_win(self, gate_on: GateOn) -> None:
        row = errand(state="queued", dispatch_seconds=-1)
        with gate_on("errand", row) as held:
            first = Rival(claiming(row)).until_it_waits()
            second = Rival(sweep)
            assert second.result().skipped == 1
            held.open()

        assert first.result() is not None
        assert sweep().examined == 0
        assert now(row).dispatch_count == 0


class TestReleaseAndCancel:
    def test_release_first_the_cancel_ends_the_queued_row(
        self, orphan: Errand, gate_on: GateOn
    ) -> None:
        with gate_on("legs", orphan) as held:
            first = Rival(sweep).until_it_waits()
            second = Rival(lambda: cancel(orphan.pk)).until_it_waits()
            held.open()

        assert first.result().adopted == 1
        assert second.result() == "queued"
        assert (now(orphan).state, now(orphan).generation) == ("cancelled", 2)
        assert set(Leg.objects.values_list("state", flat=True)) == {"interrupted"}
        assert sweep().examined == 0

    def test_cancel_first_the_sweep_ends_the_row_as_cancelled(
        self, orphan: Errand, gate_on: GateOn
    ) -> None:
        with gate_on("errand", orphan) as held:
            first = Rival(lambda: cancel(orphan.pk)).until_it_waits()
            assert sweep().skipped == 1
            held.open()

        assert first.result() == "running"
        assert sweep().interrupted == 1
        assert (now(orphan).state, now(orphan).error_code) == ("cancelled", "cancelled")

    def test_a_cancel_between_look_and_lock_is_seen(self, orphan: Errand) -> None:
        recovery, report = ErrandRecovery(), RecoveryReport("errands")
        selected = recovery._owned.look(limit=10)
        Rival(lambda: cancel(orphan.pk)).result()

        recovery._settle_batch(selected, report)

        assert (report.adopted, report.interrupted) == (0, 1)
        assert now(orphan).state == "cancelled"

    def test_release_cancel_and_claim_in_a_row(self, orphan: Errand, gate_on: GateOn) -> None:
        with gate_on("legs", orphan) as held:
            first = Rival(sweep).until_it_waits()
            second = Rival(lambda: cancel(orphan.pk)).until_it_waits()
            third = Rival(claiming(orphan)).until_it_waits()
            held.open()

        assert first.result().adopted == 1
        outcome = (second.result(), third.result() is None, now(orphan).state)
        assert outcome in {("queued", True, "cancelled"), ("running", False, "running")}


class TestReleaseAndOldOwner:
    @pytest.mark.parametrize("act", ["finish", "request", "start"])
    def test_release_first_the_old_owner_is_stale(
        self, act: str, orphan: Errand, gate_on: GateOn
    ) -> None:
        fence, leg = fence_of(orphan), Leg.objects.order_by("pk").first()
        assert leg is not None
        acts: dict[str, Callable[[], object]] = {
            "finish": lambda: finish(fence),
            "request": lambda: request_leg(fence),
            "start": lambda: move_leg(fence, leg.pk, "running"),
        }
        with gate_on("legs", orphan) as held:
            first = Rival(sweep).until_it_waits()
            second = Rival(acts[act]).until_it_waits()
            held.open()

        assert first.result().adopted == 1
        assert isinstance(second.error(), StaleFence)

    def test_finish_first_nothing_is_released(self, orphan: Errand, gate_on: GateOn) -> None:
        fence = fence_of(orphan)
        with gate_on("legs", orphan) as held:
            first = Rival(lambda: finish(fence)).until_it_waits()
            assert sweep().skipped == 1
            held.open()

        first.result()
        assert sweep().examined == 0
        assert now(orphan).state == "completed"


ROUNDS = 60
WORKERS = 4
SWEEPERS = 2
PAST = timedelta(seconds=DEADLINE_GRACE_SECONDS + 1)


class Worker:
    """Claims, works, ends, dies; whatever is refused, it goes on."""

    def __init__(self, seed: int, rows: list[int]) -> None:
        self.random = random.Random(seed)
        self.rows = rows
        self.did: Counter[str] = Counter()
        self.has_ended = False

    def run(self) -> None:
        try:
            self.go_on()
        finally:
            self.has_ended = True

    def go_on(self) -> None:
        owner = runtime_row().pk
        for _ in range(ROUNDS):
            pk = self.random.choice(self.rows)
            if self.random.random() < 0.1:
                self.did[f"cancelled {cancel(pk)}"] += 1
                continue
            fence = claim(pk, owner=owner)
            if fence is None:
                continue
            self.did["claimed"] += 1
            try:
                self.work(fence)
                if self.random.random() < 0.3:
                    finish(fence)
                    self.did["finished"] += 1
            except StaleFence:
                self.did["stale"] += 1
            if self.random.random() < 0.5:
                bury(owner)
                owner = runtime_row().pk
                self.did["died"] += 1
        bury(owner)

    def work(self, fence: Fence) -> None:
        done = request_leg(fence)
        request_leg(fence)
        move_leg(fence, done, "running")
        if self.random.random() < 0.7:
            move_leg(fence, done, "done")
        requested = Leg.objects.filter(errand_id=fence.pk, state="requested")
        for leg in requested.values_list("pk", flat=True)[:2]:
            move_leg(fence, leg, "running")
        if self.random.random() < 0.1:
            # the deadline passes under a living owner
            Errand.objects.filter(pk=fence.pk, generation=fence.generation).update(
                deadline_at=Now() - PAST, write_mark=F("write_mark") + 1
            )


def test_all_at_once_neither_deadlock_nor_adopt_a_row_twice() -> None:
    yards = [Yard.objects.create() for _ in range(3)]
    rows = [errand(state="queued", yard=yards[n % 3]).pk for n in range(90)]
    rows += [errand(yard=yards[n % 3]).pk for n in range(30)]
    poison = errand(yard=yards[0], address="poison")
    workers = [Worker(seed, rows) for seed in range(WORKERS)]
    rivals: list[Rival[None]] = [Rival(worker.run) for worker in workers]
    reports: list[RecoveryReport] = []

    def sweeping() -> None:
        recovery = EagerRecovery()
        recovery.batch_rows = 7  # type: ignore[misc]
        while not all(worker.has_ended for worker in workers):
            reports.append(recovery.settle_orphans())

    rivals += [Rival(sweeping) for _ in range(SWEEPERS)]
    for rival in rivals:
        assert rival.error(seconds=90) is None
    # a row that was locked at each of their looks is left to the first pass in which it is not
    reports.append(ErrandRecovery().settle_orphans())
    did = sum((worker.did for worker in workers), Counter[str]())

    failed = [
        row["id"] for report in reports for row in report.rows if row["action"] == "failed"
    ]
    assert set(failed) == {str(poison.pk)}
    assert did["claimed"] > 20
    assert did["died"] > 5
    assert now(poison).generation == 1
    for row in Errand.objects.exclude(pk=poison.pk):
        events = list(
            RecoveryEvent.objects.filter(row_id=row.pk)
            .order_by("generation", "pk")
            .values_list("generation", "action")
        )
        adopted = [generation for generation, action in events if action == "adopted"]
        assert len(adopted) == len(set(adopted)), "a generation was released twice"
        # each claim and each release is one generation, and none is skipped
        assert row.generation == row.attempts + len(adopted)
        open_legs = Leg.objects.filter(errand=row, state__in=["requested", "running"])
        assert row.state == "queued" or not open_legs.exists()
        assert set(open_legs.values_list("state", "generation")) <= {
            ("requested", row.generation)
        }
