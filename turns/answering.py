"""What a turn keeps of the work between its claim and its end: receipt, steps, live text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from recovery.bounds import cut_utf8
from recovery.errors import BoundExceeded, ErrorCode
from recovery.fences import Fence
from turns import transitions
from turns.limits import Limits
from turns.models import ProviderStep, ToolStep, Turn
from turns.models.steps import ToolStepFields
from turns.providers.types import Completed, TextRequest
from turns.requests import Requests
from turns.textlog import TextLog
from turns.tools.registry import Arguments, Invocation
from turns.transitions import CallOutcome, RequestedCall, RequestFacts


@dataclass(frozen=True, slots=True)
class Question:
    """What the claimed row says about the work."""

    owner_id: int
    conversation_id: int
    user_message_id: int
    limits: Limits

    @classmethod
    def of(cls, turn_id: int) -> Question:
        """Read it."""
        turn = Turn.objects.select_related("conversation").get(pk=turn_id)
        return cls(
            turn.conversation.owner_id,
            turn.conversation_id,
            turn.user_message_id,
            Limits.stored(turn.limits),
        )

    def invocation(self, key: UUID, arguments: Arguments) -> Invocation[Arguments]:
        """Return a call on behalf of who asked."""
        return Invocation(
            self.owner_id, self.conversation_id, self.user_message_id, key, arguments
        )


class TurnLedger:
    """The rows of one turn under one fence; what is said goes to the text log."""

    word: Final = "turn"

    def __init__(
        self, fence: Fence, limits: Limits, *, log: TextLog, requests: Requests
    ) -> None:
        self._fence = fence
        self._limits = limits
        self._log = log
        self._requests = requests
        self._text_bytes = 0
        self._last_seq = 0

    def request(
        self, sequence: int, *, provider_api: str, offer_tools: bool
    ) -> tuple[TextRequest, RequestFacts]:
        """Return the next request."""
        return self._requests.build(
            self._fence.pk, step=sequence, provider_api=provider_api, offer_tools=offer_tools
        )

    def start_request(self, sequence: int, facts: RequestFacts) -> ProviderStep:
        """Store the next provider step; with the first the receipt is captured."""
        if sequence == 1:
            return transitions.capture_receipt(self._fence, facts)
        return transitions.start_provider_step(self._fence, facts)

    def request_at(self, sequence: int) -> ProviderStep | None:
        """Return the open provider step number `sequence`."""
        return transitions.provider_step_at(self._fence, sequence)

    def complete_request(
        self, step_id: int, response: Completed, calls: Sequence[RequestedCall]
    ) -> Sequence[ToolStep]:
        """Store the end of a response, how far its text reaches, and its calls."""
        return transitions.complete_provider_step(
            self._fence,
            step_id,
            response_id=response.response_id,
            usage=response.usage,
            last_seq=self._last_seq,
            calls=calls,
            anomaly_count=response.anomalies,
        )

    def move_calls(
        self, ended: Sequence[CallOutcome], starting: Sequence[ToolStepFields]
    ) -> Sequence[ToolStep]:
        """Store what came of calls, and mark others as running."""
        return transitions.move_tool_steps(
            self._fence, ended=ended, starting=[step.pk for step in starting]
        )

    def running_calls(self, steps: Sequence[ToolStepFields]) -> Sequence[ToolStep] | None:
        """Return the steps if they run."""
        running = transitions.running_tool_steps(self._fence, [step.pk for step in steps])
        return running if len(running) == len(steps) > 0 else None

    async def write(self, text: str) -> None:
        """Hand the text to the log, as much of it as the turn may say."""
        kept = cut_utf8(text, self._limits.text_bytes - self._text_bytes)
        self._text_bytes += len(kept.encode())
        if kept:
            await self._log.write(self._fence, kept)
        if kept != text:
            raise BoundExceeded(ErrorCode.ASSISTANT_MESSAGE_LIMIT_REACHED)

    async def flushed(self) -> None:
        """Return once all text is committed."""
        self._last_seq = await self._log.flushed(self._fence)
