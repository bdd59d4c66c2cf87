"""The recover commands: the names, shapes and exit codes that people script."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from typing import Any, ClassVar

import psycopg
import pytest
from django.core.management import CommandError, call_command

from config.embedded.postgres import free_port
from recovery import runner
from recovery.commands import RecoverCommand
from recovery.models import RecoveryEvent
from tests.recovery.parcels import ParcelRecovery, parcel, parcel_tables
from tests.support.processes import ROOT, interruptible
from tests.support.runtimes import runtime_row, watch_database

pytestmark = pytest.mark.django_db(transaction=True)


class RecoverParcels(RecoverCommand):
    kind: ClassVar[str] = "parcels"


@pytest.fixture(autouse=True)
def parcels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(runner, "_registered", {"parcels": ParcelRecovery()})
    watch_database()
    with parcel_tables():
        yield


def recover(*options: str) -> str:
    out = StringIO()
    call_command(RecoverParcels(stdout=out), *options)
    return out.getvalue()


def test_json_has_the_fixed_shape() -> None:
    row = parcel()
    report = json.loads(recover("--json"))
    assert report.pop("duration_ms") >= 0
    assert report == {
        "kind": "parcels",
        "examined": 1,
        "adopted": 0,
        "interrupted": 1,
        "redispatched": 0,
        "skipped": 0,
        "failed": 0,
        "rows": [
            {
                "id": str(row.pk),
                "cause": "runtime_lost",
                "action": "interrupted",
                "error_code": "runtime_lost",
            }
        ],
    }
    assert json.loads(recover("--json"))["examined"] == 0


def test_text_is_a_line_a_row_and_a_sentence() -> None:
    row = parcel()
    first, sentence = recover().splitlines()
    assert first.split() == [str(row.pk), "runtime_lost", "interrupted", "runtime_lost"]
    assert sentence.startswith("parcels: 1 examined, 0 adopted, 1 interrupted")


def test_a_dry_run_changes_nothing_and_says_so() -> None:
    parcel()
    assert "parcels: 1 would be taken up; nothing was changed." in recover("--dry-run")
    assert RecoveryEvent.objects.count() == 0
    assert json.loads(recover("--dry-run", "--json"))["interrupted"] == 0


def test_a_dry_run_tells_of_runtimes_it_does_not_bury() -> None:
    runtime_row(lease_seconds=-1)
    errors = StringIO()
    call_command(RecoverParcels(stdout=StringIO(), stderr=errors), "--dry-run")
    assert "1 runtime looks dead and is not buried" in errors.getvalue()


def test_limit_bounds_the_run() -> None:
    for _ in range(3):
        parcel()
    assert json.loads(recover("--json", "--limit", "2"))["interrupted"] == 2


def test_exit_is_1_when_a_candidate_was_not_settled(database_url: str) -> None:
    parcel(address="poison")
    with pytest.raises(SystemExit) as left:
        recover()
    assert left.value.code == 1
    locked = parcel()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM parcels_parcel WHERE id = %s FOR UPDATE", [locked.pk])
        with pytest.raises(SystemExit) as left:
            recover()
    assert left.value.code == 1


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_exit_is_2_on_wrong_usage(limit: str) -> None:
    with pytest.raises(CommandError) as refused:
        recover(f"--limit={limit}")
    assert refused.value.returncode == 2


def test_exit_is_2_where_nothing_recovers_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_registered", {})
    with pytest.raises(CommandError) as refused:
        recover()
    assert refused.value.returncode == 2


def manage(
    environment: dict[str, str], *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_real_command_keeps_its_word(process_environment: dict[str, str]) -> None:
    done = manage(process_environment, "recover_turns", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["kind"] == "turns"
    assert manage(process_environment, "recover_turns", "--no-such").returncode == 2
    assert manage(process_environment, "recover_turns", "--limit=0").returncode == 2


def test_watch_goes_on_until_it_is_interrupted(process_environment: dict[str, str]) -> None:
    with interruptible():
        watching = subprocess.Popen(
            [sys.executable, "manage.py", "recover_turns", "--watch", "--json"],
            cwd=ROOT,
            env={**process_environment, "HOLDFAST_SWEEP_SECONDS": "0.1"},
            stdout=subprocess.PIPE,
            text=True,
        )
    assert watching.stdout is not None
    with watching.stdout as lines:
        assert json.loads(lines.readline())["examined"] == 0
        assert watching.poll() is None
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0


@pytest.mark.parametrize(
    "arguments",
    [["recover_turns", "--watch"], ["pause"], ["create_token", "somebody"]],
    ids=" ".join,
)
def test_a_database_that_is_away_is_told_in_one_line(
    process_environment: dict[str, str], arguments: list[str]
) -> None:
    away = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    done = manage(process_environment | {"DATABASE_URL": away}, *arguments)
    assert done.returncode == 1
    assert done.stderr == "CommandError: the database is away: OperationalError\n"
