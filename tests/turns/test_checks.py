"""Bounds that contradict each other do not start."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from turns import bounds, checks


def ids() -> list[str | None]:
    return [problem.id for problem in checks.bounds_agree(None)]


def test_the_bounds_as_shipped_agree() -> None:
    assert ids() == []


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("HELD_TEXT_MAX_BYTES", 1, "turns.E001"),
        ("USER_MESSAGE_MAX_BYTES", 1_000_000, "turns.E002"),
        ("TOOL_RESULT_MAX_BYTES", 1_000_000, "turns.E003"),
        ("SSE_LINE_MAX_BYTES", 10_000_000, "turns.E004"),
        ("TOOL_ARGUMENTS_MAX_BYTES", 1_000_000, "turns.E005"),
        ("PROVIDER_IDLE_SECONDS", 900, "turns.E006"),
        ("TOOL_TIMEOUT_SECONDS", 900, "turns.E007"),
        ("TOOL_CALLS_HARD_STOP", 1, "turns.E008"),
        ("PROVIDER_STEPS_PER_TURN", 16, "turns.E009"),
        ("QUEUE_DEADLINE_SECONDS", 100, "turns.E010"),
        ("TURN_WALL_CLOCK_SECONDS", 15, "turns.E011"),
        ("SLOW_POLL_SECONDS", 0.01, "turns.E012"),
    ],
)
def test_a_contradiction_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float, code: str
) -> None:
    monkeypatch.setattr(bounds, name, value)

    assert code in ids()


def test_a_context_too_small_for_a_conversation_is_refused(settings: Settings) -> None:
    settings.LLM_CONTEXT_BYTES = 100
    assert ids() == ["turns.E013"]


@pytest.mark.parametrize("model", ["", "m" * 201])
def test_a_model_must_have_a_name_that_can_be_stored(settings: Settings, model: str) -> None:
    settings.LLM_MODEL = model
    assert ids() == ["turns.E014"]
