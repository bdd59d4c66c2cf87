"""A turn brought to each durable stage of its protocol, by the transitions its owner would
call."""

from __future__ import annotations

from typing import Final

from recovery.fences import Fence
from recovery.models import Runtime
from tests import factories as make
from turns import transitions
from turns.models import ProviderStep, ToolStep, Turn
from turns.transitions import RequestedCall

STAGES: Final = (
    "admitted",
    "claimed",
    "receipt_captured",
    "text_committed",
    "provider_step_completed",
    "tool_running",
    "outcome_committed",
    "continuing",
    "more_text_committed",
)
FIRST_TEXT: Final = "Let me see. "
MORE_TEXT: Final = "It is"


def turn_at(stage: str, *, runtime: Runtime | None = None) -> Turn:
    """Return a turn that has come exactly as far as `stage`, owned by `runtime`."""
    stages = STAGES[: STAGES.index(stage) + 1]
    conversation = make.ConversationFactory.create()
    turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?").turn
    if "claimed" in stages:
        owner = runtime or make.RuntimeFactory.create()
        fence = transitions.claim_turn(turn.pk, owner=owner.pk)
        assert fence is not None
        _serve(turn, fence, stages)
    turn.refresh_from_db()
    return turn


def _serve(turn: Turn, fence: Fence, stages: tuple[str, ...]) -> None:
    step: ProviderStep | None = None
    tools: list[ToolStep] = []
    for stage in stages:
        match stage:
            case "receipt_captured":
                step = transitions.capture_receipt(fence, make.request_facts())
            case "text_committed":
                make.TextChunkFactory.create(turn=turn, generation=1, seq=1, text=FIRST_TEXT)
            case "provider_step_completed":
                assert step is not None
                tools = transitions.complete_provider_step(
                    fence,
                    step.pk,
                    response_id="r1",
                    usage={"output_tokens": 3},
                    last_seq=1,
                    calls=[
                        RequestedCall(
                            "c1", "i1", "webhook_post", "{}", effect=ToolStep.Effect.EXTERNAL
                        )
                    ],
                )
            case "tool_running":
                transitions.start_tool_step(fence, tools[0].pk)
            case "outcome_committed":
                transitions.finish_tool_step(
                    fence, tools[0].pk, ToolStep.State.SUCCEEDED, result="sent"
                )
            case "continuing":
                transitions.start_provider_step(fence, make.request_facts())
            case "more_text_committed":
                make.TextChunkFactory.create(turn=turn, generation=1, seq=2, text=MORE_TEXT)


def text_at(stage: str) -> str:
    """Return the text committed by `stage`."""
    place = STAGES.index(stage)
    return (FIRST_TEXT if place >= STAGES.index("text_committed") else "") + (
        MORE_TEXT if place >= STAGES.index("more_text_committed") else ""
    )
