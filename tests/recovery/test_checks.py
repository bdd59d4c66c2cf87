"""Settings that contradict each other are refused; sweeps that do not happen are noticed."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks.registry import registry
from django.db import connections
from pytest_django.fixtures import Settings

from recovery import checks
from recovery.models import Pulse
from tests.support.runtimes import age, watch_database


def found() -> set[str | None]:
    return {message.id for message in checks.settings_agree(None)}


def test_the_defaults_agree() -> None:
    assert found() == set()
    assert checks.settings_agree in registry.get_checks()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"HOLDFAST_LEASE_SECONDS": 3.0}, "recovery.E001"),
        ({"HOLDFAST_SWEEP_SECONDS": 0.0}, "recovery.E002"),
        ({"HOLDFAST_SWEEP_SECONDS": 6.0}, "recovery.E002"),
        ({"HOLDFAST_LEASE_SECONDS": 4.9}, "recovery.E003"),
        ({"HOLDFAST_SWEEP_SECONDS": 5.0}, "recovery.E003"),
        ({"HOLDFAST_LEASE_SECONDS": 2.0}, "recovery.E004"),
        ({"HOLDFAST_LIVENESS": "hope"}, "recovery.E005"),
        ({"HOLDFAST_LEASE_SECONDS": 9.0}, "recovery.E007"),
    ],
)
def test_contradictions_are_refused(
    settings: Settings, changes: dict[str, Any], expected: str
) -> None:
    for name, value in changes.items():
        setattr(settings, name, value)
    assert expected in found()


def test_session_locks_behind_a_pooler_are_refused(settings: Settings) -> None:
    """Failure H74: a transaction pooler hands a session lock to strangers."""
    settings.DATABASE_POOLED = True
    settings.DIRECT_DATABASE_URL = ""
    assert found() == {"recovery.E006"}
    settings.HOLDFAST_LIVENESS = "lease"
    assert found() == set()
    settings.HOLDFAST_LIVENESS = "lock"
    settings.DIRECT_DATABASE_URL = "postgresql://db/direct"
    assert found() == set()


def test_keepalives_that_are_off_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(connections["default"].settings_dict["OPTIONS"])
    options["keepalives_idle"] = options["keepalives_interval"] = 0
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    assert found() == {"recovery.E007"}


@pytest.mark.django_db
def test_a_sweep_that_is_too_old_is_noticed() -> None:
    """Failure H80."""

    def warned() -> list[str | None]:
        return [message.id for message in checks.sweeps_happen(None, databases=["default"])]

    assert warned() == []  # nothing has ever run here
    watch_database()
    assert warned() == ["recovery.W001"]
    Pulse.objects.update(swept_at=Pulse.objects.get().last_at)
    assert warned() == []
    age(Pulse, "swept_at", seconds=checks.SWEEP_OLD_SECONDS + 1)
    assert warned() == ["recovery.W001"]
    assert list(checks.sweeps_happen(None, databases=None)) == []
