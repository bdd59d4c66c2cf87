"""Turns as a person and an operator see them: asked for, awaited, and looked at whole."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pgtrigger
from django.db.models import Model

from recovery.fences import claimed_mark
from recovery.models import RecoveryEvent
from tests.support.waiting import wait_until
from turns.models import (
    Conversation,
    Message,
    ProviderStep,
    Receipt,
    TextChunk,
    ToolStep,
    Turn,
)
from turns.transitions import admit_turn

ROWS: tuple[type[Model], ...] = (
    Conversation,
    Message,
    Turn,
    Receipt,
    ProviderStep,
    ToolStep,
    TextChunk,
    RecoveryEvent,
)


def ask(conversation: Conversation, text: str = "What is it?") -> Turn:
    """Return the turn that a person's message begins."""
    return admit_turn(conversation.owner_id, conversation.pk, text).turn


def claim_anew(turn_id: int) -> None:
    """Give a running turn to another claim. By the rules of its table nobody can; whoever asks
    for its fence does not lean on them."""
    with pgtrigger.ignore("turns.Turn:claim_is_counted", "turns.Turn:claim_is_fixed"):
        Turn.objects.filter(pk=turn_id).update(
            generation=2, claim_token=uuid4(), owner=uuid4(), write_mark=claimed_mark(2)
        )


def wait_until_ended(turn: Turn, *, seconds: float = 60.0) -> Turn:
    """Return the turn once it has ended."""
    wait_until(
        lambda: Turn.objects.filter(
            pk=turn.pk, state__in=sorted(Turn.LIFECYCLE.terminal)
        ).exists(),
        f"turn {turn.pk} ended",
        seconds=seconds,
    )
    turn.refresh_from_db()
    return turn


def text_of(turn: Turn) -> str:
    """Return the answer as far as it is committed."""
    message = Message.objects.get(pk=turn.assistant_message_id)
    chunks = TextChunk.objects.filter(turn_id=turn.pk).order_by("seq")
    return message.text + "".join(chunks.values_list("text", flat=True))


def everything() -> dict[str, list[dict[str, Any]]]:
    """Return every row a turn consists of, to see whether anything changed."""
    return {
        model.__name__: list(model._default_manager.order_by("pk").values()) for model in ROWS
    }


def require_terminal(turn: Turn) -> None:
    """Fail unless the turn and everything it consists of has ended."""
    turn.refresh_from_db()
    assert turn.state in Turn.LIFECYCLE.terminal
    assert turn.finished_at is not None
    answer = Message.objects.get(pk=turn.assistant_message_id)
    assert answer.state in Message.LIFECYCLE.terminal
    for model in (Receipt, ProviderStep, ToolStep):
        for row in model._default_manager.filter(turn_id=turn.pk):
            assert row.state in model.LIFECYCLE.terminal, row
            assert row.finished_at is not None
    assert not TextChunk.objects.filter(turn_id=turn.pk).exists()
