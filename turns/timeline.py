"""What happened to a turn, in order, in the words of its rows. No content, no provider ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from recovery.models import RecoveryEvent
from turns.models import Receipt, Turn


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened, and when."""

    at: datetime
    what: str
    error_code: str = ""


def timeline(turn: Turn) -> list[Moment]:
    """Return the moments of a turn, oldest first; those of the same instant in their order."""
    return sorted(_moments(turn), key=lambda moment: moment.at)


def _moments(turn: Turn) -> Iterator[Moment]:
    yield from _at(turn.created_at, "admitted")
    yield from _at(turn.claimed_at, f"claimed, generation {turn.generation}")
    yield from _of_receipt(turn)
    yield from _of_steps(turn)
    yield from _at(turn.cancel_requested_at, "cancel requested")
    yield from _at(turn.finished_at, f"turn {turn.state}", turn.error_code)
    for event in RecoveryEvent.objects.filter(kind="turns", row_id=turn.pk).order_by("pk"):
        what = f"recovery: {event.action} ({event.cause})"
        # most ends are named for their cause: said once is enough
        code = "" if event.error_code == event.cause else event.error_code
        yield from _at(event.created_at, what, code)


def _of_receipt(turn: Turn) -> Iterator[Moment]:
    receipt = Receipt.objects.filter(turn_id=turn.pk).first()
    if receipt is not None:
        yield from _at(
            receipt.created_at, f"receipt captured, {receipt.message_count} messages"
        )
        yield from _at(receipt.finished_at, f"receipt {receipt.state}", receipt.error_code)


def _of_steps(turn: Turn) -> Iterator[Moment]:
    for step in turn.provider_steps.order_by("sequence"):
        name = f"provider step {step.sequence}"
        yield from _at(step.started_at, f"{name} started, {step.request_bytes} bytes sent")
        yield from _at(step.finished_at, f"{name} {step.state}", step.error_code)
    for tool in turn.tool_steps.order_by("sequence"):
        name = f"tool step {tool.sequence} ({tool.name})"
        yield from _at(tool.requested_at, f"{name} requested")
        yield from _at(tool.started_at, f"{name} started")
        yield from _at(tool.finished_at, f"{name} {tool.state}", tool.error_code)


def _at(at: datetime | None, what: str, error_code: str = "") -> Iterator[Moment]:
    if at is not None:
        yield Moment(at, what, error_code)
