"""The live runtime of one turn: it claims, has the answer written, and ends the turn, once.

claimed -> answering -> ending

stop(ending)    a cancel: the work is cut short, then this end is written
release()       the process stops: cut short, flushed, and left to the host to end
abandon()       fenced: cut short, and nothing is written any more
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import structlog

from recovery.errors import ErrorCode, StaleFence
from recovery.fences import Fence
from recovery.probes import areach
from turns import transitions
from turns.answering import Answering, Ending, Question
from turns.confirmed import confirmed, read
from turns.models import Turn
from turns.pending_text import TextNotStored
from turns.providers.types import TextProvider
from turns.requests import Requests
from turns.textlog import TextLog
from turns.tools.registry import Registry
from turns.transitions import CancelRequested

log = structlog.get_logger()

_BROKEN: Final = Ending(Turn.State.FAILED, ErrorCode.INTERNAL_ERROR)


class TurnServer:
    """Serves one turn on the event loop of its process."""

    def __init__(
        self,
        turn_id: int,
        *,
        owner: UUID,
        provider: TextProvider,
        text: TextLog,
        tools: Registry,
        requests: Requests,
    ) -> None:
        self.turn_id = turn_id
        self.fence: Fence | None = None
        self.owner = owner
        self._provider = provider
        self._text = text
        self._tools = tools
        self._requests = requests
        self._stop: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """End the turn as cancelled: somebody asked for it."""
        self.stop(Ending(Turn.State.CANCELLED))

    def stop(self, ending: Ending) -> None:
        """Cut the work short and end the turn like this. What was asked first counts."""
        if not self._stop.done():
            self._stop.set_result(ending)

    def release(self) -> None:
        """Cut the work short, commit the text that arrived, and leave the end to the host."""
        if not self._stop.done():
            self._stop.set_result(None)

    def abandon(self) -> None:
        """Write nothing more: the turn belongs to somebody else, or has ended."""
        if not self._stop.done():
            self._stop.set_exception(StaleFence())

    async def run(self) -> Fence | None:
        """Serve the turn to its end; return the fence of one released without an end."""
        # Retrieved in every case: an exception nobody looks at would be logged by the loop.
        self._stop.add_done_callback(lambda stop: stop.cancelled() or stop.exception())
        await areach("turn.admitted")
        fence = await self._claim()
        if fence is None:
            log.info("turn.not_claimed", turn_id=self.turn_id)
            return None
        self.fence = fence
        log.info("turn.claimed", turn_id=fence.pk, generation=fence.generation)
        await areach("turn.claimed")
        try:
            try:
                return await self._serve(fence)
            except StaleFence:
                raise
            except Exception as error:
                # A claimed row that nobody serves would wait for its deadline.
                log.error("turn.broken", turn_id=self.turn_id, exc_info=error)
                await self._finish(fence, _BROKEN, None)
        except StaleFence:
            log.warning("turn.fence_lost", turn_id=fence.pk, generation=fence.generation)
        finally:
            self._text.close(fence)
        return None

    async def _claim(self) -> Fence | None:
        token = uuid4()
        return await confirmed(
            partial(transitions.claim_turn, self.turn_id, owner=self.owner, token=token),
            partial(transitions.claim_under, token),
        )

    async def _serve(self, fence: Fence) -> Fence | None:
        question = await read(partial(Question.of, fence.pk))
        self._text.open(fence, question.conversation_id)
        answering = Answering(
            fence,
            question,
            provider=self._provider,
            log=self._text,
            tools=self._tools,
            requests=self._requests,
        )
        ending = await self._ending(answering, question.limits.wall_clock_seconds)
        last_seq = None
        try:
            last_seq = await self._text.flushed(fence)
        except TextNotStored as failed:
            if ending is not None and ending.state == Turn.State.COMPLETED:
                ending = Ending(
                    Turn.State.FAILED, failed.code, ending.response_id, ending.usage
                )
        if ending is None:
            return fence
        await areach("turn.finishing")
        await self._finish(fence, ending, last_seq)
        return None

    async def _ending(self, answering: Answering, seconds: float) -> Ending | None:
        """Let the work run until it is done, stopped or out of time; then it runs no more."""
        work = asyncio.create_task(answering.run(), name=f"turn {self.turn_id}")
        try:
            either: set[asyncio.Future[Any]] = {work, self._stop}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if self._stop.done() and (work.cancelled() or self._stop.exception()):
            asked = self._stop.result()
            return asked and replace(asked, response_id=answering.response_id)
        if work.cancelled():
            return Ending(Turn.State.FAILED, ErrorCode.DEADLINE_PASSED, answering.response_id)
        try:
            return work.result()
        except CancelRequested:
            return Ending(Turn.State.CANCELLED, None, answering.response_id)

    async def _finish(self, fence: Fence, ending: Ending, last_seq: int | None) -> None:
        finish = partial(
            transitions.finish_turn,
            fence,
            ending.state,
            error_code=ending.error_code,
            usage=ending.usage,
            response_id=ending.response_id,
            last_seq=last_seq,
            text=ending.text,
        )
        turn = await confirmed(finish, partial(_ended, fence))
        log.info(
            "turn.ended", turn_id=turn.pk, state=turn.state, error_code=turn.error_code or None
        )


def _ended(fence: Fence) -> Turn | None:
    """Return the turn if it has ended under this claim."""
    turn = Turn.objects.filter(pk=fence.pk, claim_token=fence.token).first()
    return turn if turn is not None and turn.state in Turn.LIFECYCLE.terminal else None
