"""What happened to a turn, in order, in the words of its rows. No content, no provider ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recovery.counting import counted
from recovery.timeline import Moment, at, in_order, of_recovery
from turns.lifecycles import KIND
from turns.models import Receipt, Turn
from turns.models.steps import ProviderStepFields, ToolStepFields


def timeline(turn: Turn) -> list[Moment]:
    """Return the moments of a turn, oldest first."""
    return in_order(_moments(turn))


def _moments(turn: Turn) -> Iterator[Moment]:
    yield from at(turn.created_at, "admitted")
    yield from at(turn.claimed_at, f"claimed, generation {turn.generation}")
    yield from _of_receipt(turn)
    yield from of_provider_steps(turn.provider_steps.order_by("sequence"))
    yield from of_tool_steps(turn.tool_steps.order_by("sequence"))
    yield from at(turn.cancel_requested_at, "cancel requested")
    yield from at(turn.finished_at, f"turn {turn.state}", turn.error_code)
    yield from of_recovery(KIND, turn.pk)


def _of_receipt(turn: Turn) -> Iterator[Moment]:
    receipt = Receipt.objects.filter(turn_id=turn.pk).first()
    if receipt is not None:
        yield from at(
            receipt.created_at, f"receipt captured, {counted(receipt.message_count, 'message')}"
        )
        yield from at(receipt.finished_at, f"receipt {receipt.state}", receipt.error_code)


def of_provider_steps(
    steps: Iterable[ProviderStepFields], *, generations: bool = False
) -> Iterator[Moment]:
    """Yield when each request began and ended; with whose generation it was, if asked."""
    for step in steps:
        name = f"provider step {step.sequence}"
        by = f", generation {step.generation}" if generations else ""
        yield from at(
            step.started_at, f"{name} started{by}, {counted(step.request_bytes, 'byte')} sent"
        )
        yield from at(step.finished_at, f"{name} {step.state}", step.error_code)


def of_tool_steps(
    steps: Iterable[ToolStepFields], *, generations: bool = False
) -> Iterator[Moment]:
    """Yield when each call was asked for, began and ended, and in which generation.

    A call that waits moves from generation to generation, so only its start has one.
    """
    for step in steps:
        name = f"tool step {step.sequence} ({step.name})"
        by = f", generation {step.generation}" if generations else ""
        yield from at(step.requested_at, f"{name} requested")
        yield from at(step.started_at, f"{name} started{by}")
        yield from at(step.finished_at, f"{name} {step.state}", step.error_code)
