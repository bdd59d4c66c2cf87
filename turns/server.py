"""The live runtime of one turn: it claims, has the answer written, and ends the turn, once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import structlog

from recovery.errors import ErrorCode
from recovery.fences import Fence
from recovery.probes import areach
from recovery.servers import RowServer
from turns import transitions
from turns.answering import Question, TurnLedger
from turns.confirmed import confirmed, read
from turns.models import Turn
from turns.pending_text import TextNotStored
from turns.providers.types import TextProvider
from turns.requests import Requests
from turns.textlog import TextLog
from turns.tool_loop import End, Ending, ToolLoop
from turns.tools.registry import Registry

log = structlog.get_logger()

_BROKEN: Final = Ending(End.FAILED, ErrorCode.INTERNAL_ERROR)


class TurnServer(RowServer[Ending]):
    """Serves one turn on the event loop of its process."""

    word = "turn"

    def __init__(
        self,
        pk: int,
        *,
        owner: UUID,
        provider: TextProvider,
        text: TextLog,
        tools: Registry,
        requests: Requests,
    ) -> None:
        super().__init__(pk, owner=owner)
        self._provider = provider
        self._text = text
        self._tools = tools
        self._requests = requests

    def cancel(self) -> None:
        """End the turn as cancelled."""
        self.stop(Ending(End.CANCELLED))

    async def claim(self) -> Fence | None:
        """Claim the turn."""
        token = uuid4()
        return await confirmed(
            partial(transitions.claim_turn, self.pk, owner=self.owner, token=token),
            partial(transitions.claim_under, token),
        )

    async def serve(self, fence: Fence) -> Fence | None:
        """Have the answer written; a turn that is released has all its text committed."""
        question = await read(partial(Question.of, fence.pk))
        self._text.open(fence, question.conversation_id)
        loop = ToolLoop(
            TurnLedger(fence, question.limits, log=self._text, requests=self._requests),
            provider=self._provider,
            tools=self._tools,
            invocation=question.invocation,
            provider_steps_max=question.limits.provider_steps,
        )
        ending = await self.until_stopped(
            loop.run(),
            question.limits.wall_clock_seconds,
            lambda: Ending(End.FAILED, ErrorCode.DEADLINE_PASSED, loop.response_id),
        )
        last_seq = None
        try:
            last_seq = await self._text.flushed(fence)
        except TextNotStored as failed:
            if ending is not None and ending.end == End.COMPLETED:
                ending = replace(ending, end=End.FAILED, error_code=failed.code, response=None)
        if ending is None:
            return fence
        await areach("turn.finishing")
        await self._finish(fence, ending, last_seq)
        return None

    async def finish_broken(self, fence: Fence) -> None:
        """End the turn as failed, with the text that is committed."""
        await self._finish(fence, _BROKEN, None)

    async def close(self, fence: Fence, *, ended: bool) -> None:  # noqa: ARG002 - either way
        """Forget the turn's text."""
        self._text.close(fence)

    async def _finish(self, fence: Fence, ending: Ending, last_seq: int | None) -> None:
        response = ending.response
        finish = partial(
            transitions.finish_turn,
            fence,
            Turn.State(ending.end),
            error_code=ending.error_code,
            usage=ending.usage,
            response_id=ending.response_id,
            last_seq=last_seq,
            # what was streamed stays, unless the service ended by saying something else
            text=response.text if response is not None and response.anomalies else None,
        )
        turn = await confirmed(finish, partial(_ended, fence))
        log.info(
            "turn.ended", turn_id=turn.pk, state=turn.state, error_code=turn.error_code or None
        )


def _ended(fence: Fence) -> Turn | None:
    """Return the turn if it has ended under this claim."""
    turn = Turn.objects.filter(pk=fence.pk, claim_token=fence.token).first()
    return turn if turn is not None and turn.state in Turn.LIFECYCLE.terminal else None
