"""The sweep: one function for everybody, elected once a second, alive through outages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django.fixtures import Settings

from recovery import runner
from recovery.models import Pulse, RecoveryEvent
from recovery.reports import RecoveryReport
from recovery.sweep import SweepThread, sweep
from tests.recovery.parcels import Parcel, ParcelRecovery, parcel, parcel_tables
from tests.support.runtimes import age, runtime_row, watch_database
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


class Registered(dict[str, runner.Recovery]):
    """The registry of one test."""


@pytest.fixture(autouse=True)
def recovery(monkeypatch: pytest.MonkeyPatch) -> Iterator[ParcelRecovery]:
    monkeypatch.setattr(runner, "_registered", Registered())
    recovery = ParcelRecovery()
    runner.register(recovery)
    with parcel_tables():
        yield recovery


def test_one_sweep_buries_and_settles_every_kind() -> None:
    watch_database()
    parcel(owner=runtime_row(lease_seconds=-1).pk)
    reports = sweep()
    assert reports["parcels"].interrupted == 1
    assert Pulse.objects.get().swept_at is not None


def test_an_elected_sweep_does_nothing_when_another_has_just_begun() -> None:
    watch_database()
    parcel()
    assert sweep(elect=True) == {}
    age(Pulse, "last_at", seconds=1)
    assert sweep(elect=True)["parcels"].interrupted == 1


def test_only_the_asked_for_kinds_are_settled() -> None:
    watch_database()
    parcel()
    assert sweep(kinds=["voice"]) == {}
    assert sweep(kinds=["parcels"])["parcels"].interrupted == 1


def test_a_dry_run_buries_nobody() -> None:
    watch_database()
    owner = runtime_row(lease_seconds=-1)
    parcel(owner=owner.pk)
    assert sweep(dry_run=True)["parcels"].examined == 0
    owner.refresh_from_db()
    assert owner.stopped_at is None


def test_a_sweep_works_though_none_has_run_for_an_hour(settings: Settings) -> None:
    """Failure H80: without beat, an operator's command alone recovers."""
    settings.HOLDFAST_LEASE_SECONDS = 2.0
    watch_database()
    for column in ("last_at", "unbroken_since"):
        age(Pulse, column, seconds=3_600)
    parcel(owner=runtime_row(lease_seconds=-3_600).pk)
    assert sweep()["parcels"].interrupted == 0  # it cannot know yet who is alive
    assert sweep(patient=True)["parcels"].interrupted == 1


def test_overlapping_sweeps_recover_no_row_twice() -> None:
    """Failure H79."""
    watch_database()
    for _ in range(40):
        parcel()
    barrier = Barrier(3)

    def one() -> dict[str, RecoveryReport]:
        try:
            connection.ensure_connection()
            barrier.wait()
            return sweep()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(one) for _ in range(3)]:
            future.result()
    assert set(Parcel.objects.values_list("state", flat=True)) == {"interrupted"}
    assert RecoveryEvent.objects.count() == 40


def test_one_kind_that_fails_keeps_no_other_from_its_sweep(
    monkeypatch: pytest.MonkeyPatch, recovery: ParcelRecovery
) -> None:
    class Broken(ParcelRecovery):
        kind = "broken"

        def settle_orphans(self, **_options: Any) -> RecoveryReport:
            raise ValueError

    monkeypatch.setattr(runner, "_registered", Registered())
    runner.register(Broken())
    runner.register(recovery)
    watch_database()
    parcel()
    reports = sweep()
    assert reports["parcels"].interrupted == 1
    assert reports["broken"].failed == 1
    assert not reports["broken"].all_settled


@pytest.fixture
def sweep_thread(settings: Settings) -> Iterator[SweepThread]:
    settings.HOLDFAST_SWEEP_SECONDS = 0.05
    thread = SweepThread()
    thread.start()
    yield thread
    thread.stop()


def test_the_thread_settles_without_being_asked(sweep_thread: SweepThread) -> None:
    parcel()
    wait_until(lambda: set(Parcel.objects.values_list("state", flat=True)) == {"interrupted"},
               "the sweep")  # fmt: skip
    sweep_thread.stop()
    assert not sweep_thread._thread.is_alive()


def test_the_thread_survives_the_loss_of_its_session(sweep_thread: SweepThread) -> None:
    for _ in range(3):
        swept_at = _next_sweep()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert _next_sweep() > swept_at
    assert sweep_thread._thread.is_alive()


def test_the_thread_takes_another_session_after_a_pass_with_a_failure(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """A function that planned for another type fails in its session for ever."""
    sessions: list[int] = []

    def failing(**_options: Any) -> dict[str, RecoveryReport]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            sessions.append(cursor.fetchone()[0])
        return {"parcels": RecoveryReport("parcels", failed=1)}

    monkeypatch.setattr("recovery.sweep.sweep", failing)
    settings.HOLDFAST_SWEEP_SECONDS = 0.05
    thread = SweepThread()
    thread.start()
    wait_until(lambda: len(sessions) > 1, "two passes")
    thread.stop()
    assert len(set(sessions)) == len(sessions)


def _next_sweep() -> Any:
    before = Pulse.objects.values_list("swept_at", flat=True).first()
    wait_until(
        lambda: Pulse.objects.values_list("swept_at", flat=True).first() != before, "a sweep"
    )
    return Pulse.objects.get().swept_at
