"""Bounds of derivatives and search that contradict each other do not start."""

from __future__ import annotations

import pytest
from django.core.checks import registry

from semantic import bounds, checks
from turns import bounds as turns_bounds


def ids() -> list[str | None]:
    return [problem.id for problem in checks.bounds_agree(None)]


def test_the_bounds_as_shipped_agree() -> None:
    assert ids() == []


def test_they_are_checked_before_anything_runs() -> None:
    assert checks.bounds_agree in registry.registry.get_checks()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("COOL_DOWN_SECONDS", 30, "semantic.E002"),
        ("PROVIDER_TIMEOUT_SECONDS", 20, "semantic.E003"),
        ("ATTEMPTS", 0, "semantic.E004"),
        ("ROUNDS_AFTER_FAILURE", -1, "semantic.E004"),
        ("BATCH_ITEMS", 0, "semantic.E005"),
        ("BATCH_ITEMS", 2_049, "semantic.E005"),
        ("EMBEDDED_TEXT_MAX_BYTES", 7_999, "semantic.E006"),
        ("QUERY_TIMEOUT_SECONDS", 15, "semantic.E007"),
        ("HITS_MAX", 51, "semantic.E008"),
        ("INDEX_SEARCH_WIDTH", 49, "semantic.E008"),
    ],
)
def test_a_contradiction_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int, code: str
) -> None:
    monkeypatch.setattr(bounds, name, value)
    assert code in ids()


@pytest.mark.parametrize(
    ("timeout", "lease"), [(30, 30), (31, 30), (15, 15), (15, 20), (0, 30)]
)
def test_a_provider_that_may_outlast_its_lease_is_refused(
    monkeypatch: pytest.MonkeyPatch, timeout: int, lease: int
) -> None:
    """failure H13"""
    monkeypatch.setattr(bounds, "PROVIDER_TIMEOUT_SECONDS", timeout)
    monkeypatch.setattr(bounds, "LEASE_SECONDS", lease)
    assert "semantic.E001" in ids()


def test_what_a_person_says_fits_into_what_is_embedded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns_bounds, "USER_MESSAGE_MAX_BYTES", 24_577)
    assert "semantic.E006" in ids()
