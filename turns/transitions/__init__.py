"""Every write to a conversation or turn. Each function is one transaction of its own.

All of them lock in one order: the person (admission alone), the conversation, the turn, its
children. The first statement of each is the one that raises the conversation's revision, so
that a reader of the live view sees every transition, and a row is only ever written under that
lock. A refused transition leaves nothing behind, the revision included.

What an owner does presents its `Fence`; `StaleFence` means that another claim, or the end of
the turn, has overtaken it: nothing was written, and it stops.
"""

from turns.transitions.admission import Admission, admit_turn
from turns.transitions.calls import CallOutcome, RequestedCall
from turns.transitions.cancelling import request_cancel
from turns.transitions.claims import claim_turn
from turns.transitions.conversations import create_conversation
from turns.transitions.editing import (
    delete_conversation,
    delete_message,
    edit_message,
    rename_conversation,
)
from turns.transitions.endings import finish_turn, interrupt_own_turns, interrupt_turns
from turns.transitions.locks import CancelRequested
from turns.transitions.notes import remove_note, save_note
from turns.transitions.provider_steps import (
    RequestFacts,
    capture_receipt,
    complete_provider_step,
    start_provider_step,
)
from turns.transitions.rereading import (
    claim_under,
    provider_step_at,
    running_tool_steps,
    tool_steps_of,
)
from turns.transitions.tool_steps import (
    finish_tool_step,
    move_tool_steps,
    require_running,
    start_tool_step,
)

__all__ = [
    "Admission",
    "CallOutcome",
    "CancelRequested",
    "RequestFacts",
    "RequestedCall",
    "admit_turn",
    "capture_receipt",
    "claim_turn",
    "claim_under",
    "complete_provider_step",
    "create_conversation",
    "delete_conversation",
    "delete_message",
    "edit_message",
    "finish_tool_step",
    "finish_turn",
    "interrupt_own_turns",
    "interrupt_turns",
    "move_tool_steps",
    "provider_step_at",
    "remove_note",
    "rename_conversation",
    "request_cancel",
    "require_running",
    "running_tool_steps",
    "save_note",
    "start_provider_step",
    "start_tool_step",
    "tool_steps_of",
]
