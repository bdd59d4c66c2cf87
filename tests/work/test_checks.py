"""Bounds of jobs that contradict each other do not start."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from turns import bounds as turns_bounds
from work import bounds, checks


def ids() -> list[str | None]:
    return [problem.id for problem in checks.bounds_agree(None)]


def test_the_bounds_as_shipped_agree() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("PROMPT_MAX_BYTES", 4_000, "work.E001"),
        ("REPORT_MAX_BYTES", 70_000, "work.E002"),
        ("REPORT_MAX_BYTES", 100, "work.E002"),
        ("RESPONSE_TEXT_MAX_BYTES", 100_000, "work.E003"),
        ("COMPUTER_WALL_CLOCK_SECONDS", 599, "work.E004"),
        ("WALL_CLOCK_SECONDS", 120, "work.E005"),
        ("WALL_CLOCK_MIN_SECONDS", 601, "work.E006"),
        ("ADOPTION_DEADLINE_SECONDS", 200, "work.E009"),
        ("QUEUE_DEADLINE_SECONDS", 300, "work.E009"),
        ("ADOPTION_DEADLINE_SECONDS", 20, "work.E010"),
        ("TOOL_CALLS_HARD_STOP", 63, "work.E011"),
        ("ROOT_MAX_BYTES", 513, "work.E012"),
        ("AUTHORITY_MAX_BYTES", 8_192, "work.E012"),
        ("JOBS_PER_PROCESS", 7, "work.E013"),
    ],
)
def test_a_contradiction_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int, code: str
) -> None:
    monkeypatch.setattr(bounds, name, value)
    assert code in ids()


@pytest.mark.parametrize(
    ("name", "code"),
    [("PROVIDER_IDLE_SECONDS", "work.E004"), ("TOOL_TIMEOUT_SECONDS", "work.E005")],
)
def test_a_provider_or_tool_that_outlasts_its_job_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, code: str
) -> None:
    """failure H13, for jobs"""
    monkeypatch.setattr(turns_bounds, name, 600)
    assert ids() == [code]


@pytest.mark.parametrize(("lease", "codes"), [(590, ["work.E007", "work.E008"]),
                                              (200, ["work.E008"])])  # fmt: skip
def test_a_lease_that_outlasts_a_jobs_time_is_refused(
    settings: Settings, lease: int, codes: list[str]
) -> None:
    """failure H13: a dead worker is noticed while its job can still be adopted"""
    settings.HOLDFAST_LEASE_SECONDS = lease
    assert ids() == codes
