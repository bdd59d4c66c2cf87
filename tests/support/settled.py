"""What "ended honestly" means for a turn, and how to see that no row changed."""

from __future__ import annotations

from recovery.errors import ErrorCode
from tests.support.rows import Rows, rows_of
from turns.digests import digest
from turns.models import Message, ProviderStep, Receipt, TextChunk, ToolStep, Turn

TABLES = (
    "turns_conversation",
    "turns_message",
    "turns_turn",
    "turns_receipt",
    "turns_providerstep",
    "turns_toolstep",
    "turns_textchunk",
    "work_workjob",
    "work_workproviderstep",
    "work_workstep",
    "work_jobreport",
    "work_jobreportmessage",
    "recovery_recoveryevent",
)


def every_row() -> Rows:
    """Return each row of turns and jobs: see `rows_of`."""
    return rows_of(TABLES)


def assert_settled(turn: Turn, state: str, *, code: str, text: str = "") -> None:
    """Fail unless the turn and all it consists of ended like this, with exactly this text."""
    turn = Turn.objects.get(pk=turn.pk)
    assert (turn.state, turn.error_code) == (state, code)
    assert turn.finished_at is not None

    answer = Message.objects.get(pk=turn.assistant_message_id)
    assert answer.state == ("complete" if state == "completed" else state)
    assert (answer.text, answer.digest) == (text, digest(text))
    assert not TextChunk.objects.filter(turn_id=turn.pk).exists()

    for receipt in Receipt.objects.filter(turn_id=turn.pk):
        assert (receipt.state, receipt.error_code) == (state, code)
    steps: list[ProviderStep | ToolStep] = [
        *ProviderStep.objects.filter(turn_id=turn.pk),
        *ToolStep.objects.filter(turn_id=turn.pk),
    ]
    for step in steps:
        assert step.state in step.LIFECYCLE.terminal
        assert step.finished_at is not None
        assert step.error_code in {"", *ErrorCode.values}
