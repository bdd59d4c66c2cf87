"""What happens between the claim of a turn and its end: requests, text, tool calls, and again.

The order is the contract's: persist, commit, then the effect, then its outcome. One request is
made for each provider step and never sent again; a call runs only under the `running` row this
very task has confirmed; the next request is built from committed rows alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from uuid import UUID

from recovery.bounds import cut_utf8
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.fences import Fence
from recovery.probes import areach
from turns import transitions
from turns.confirmed import confirmed, read
from turns.limits import Limits
from turns.models import ProviderStep, ToolStep, Turn
from turns.pending_text import TextNotStored
from turns.providers.types import (
    Cancelled,
    Completed,
    Started,
    TextDelta,
    TextProvider,
    TextRequest,
    ToolCall,
    Usage,
)
from turns.requests import Requests
from turns.textlog import TextLog
from turns.tools.registry import Arguments, Invocation, Registry, ToolFailed
from turns.tools.runner import invoke
from turns.transitions import RequestedCall, RequestFacts


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn is to end. Usage and response id are those of the provider step still open."""

    state: Turn.State
    error_code: ErrorCode | None = None
    response_id: str | None = None
    usage: Usage | None = None
    text: str | None = None


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


class Answering:
    """One turn's work under one fence. It writes nothing but through it."""

    def __init__(
        self,
        fence: Fence,
        question: Question,
        *,
        provider: TextProvider,
        log: TextLog,
        tools: Registry,
        requests: Requests,
    ) -> None:
        self._fence = fence
        self._question = question
        self._provider = provider
        self._log = log
        self._tools = tools
        self._requests = requests
        self._text_bytes = 0
        self._last_request_because: ErrorCode | None = None
        # whether an earlier response of this turn said something besides its calls
        self._has_spoken = False
        # what is known of the response being received, for an end that cuts it short
        self.response_id: str | None = None

    async def run(self) -> Ending:
        """Do the work; return how the turn is to end. Nothing has ended it yet.

        Raises:
            StaleFence: the turn is not ours any more.
            CancelRequested: somebody asked it to stop.
        """
        try:
            return await self._run()
        except ProviderFailed as failed:
            response_id = failed.response_id or self.response_id
            if failed.code == ErrorCode.EMPTY_OUTPUT and self._has_spoken:
                # It said what it had to say before its last call, and adds nothing.
                return Ending(Turn.State.COMPLETED, None, response_id, failed.usage)
            return Ending(Turn.State.FAILED, failed.code, response_id, failed.usage)
        except (BoundExceeded, Refused, TextNotStored) as refused:
            return Ending(Turn.State.FAILED, refused.code, self.response_id)

    async def _run(self) -> Ending:
        request, facts = await self._request()
        step = await confirmed(
            partial(transitions.capture_receipt, self._fence, facts),
            partial(transitions.provider_step_at, self._fence, 1),
        )
        await areach("turn.receipt_captured")
        while True:
            response = await self._response(request)
            if isinstance(response, Cancelled):
                return Ending(Turn.State.CANCELLED, None, response.response_id, response.usage)
            if not response.calls or response.incomplete:
                return self._last(response)
            if response.anomalies:
                # Calls of a response that contradicts itself are not executed.
                return _end(response, ErrorCode.PROVIDER_PROTOCOL)
            try:
                steps = await self._store_calls(step, response)
            except (BoundExceeded, Refused) as refused:
                return _end(response, refused.code)
            self._has_spoken = self._has_spoken or bool(response.text.strip())
            self.response_id = None
            if self._last_request_because is not None:
                return Ending(Turn.State.FAILED, self._last_request_because)
            await self._run_tools(steps)
            if any(done.error_code == ErrorCode.TOOL_CALL_LIMIT_REACHED for done in steps):
                self._last_request_because = ErrorCode.TOOL_CALL_LIMIT_REACHED
            request, step = await self._continue(step.sequence + 1)

    async def _continue(self, sequence: int) -> tuple[TextRequest, ProviderStep]:
        if sequence >= self._question.limits.provider_steps:
            self._last_request_because = ErrorCode.PROVIDER_STEP_LIMIT_REACHED
        request, facts = await self._request(sequence)
        step = await confirmed(
            partial(transitions.start_provider_step, self._fence, facts),
            partial(transitions.provider_step_at, self._fence, sequence),
        )
        await areach("turn.continuing")
        return request, step

    async def _request(self, sequence: int = 1) -> tuple[TextRequest, RequestFacts]:
        """Build the next request from committed rows; a last one asks for a report alone."""
        return await read(
            partial(
                self._requests.build,
                self._fence.pk,
                step=sequence,
                provider_api=self._provider.api,
                offer_tools=self._last_request_because is None,
            )
        )

    async def _response(self, request: TextRequest) -> Completed | Cancelled:
        """Send the request, once, and take the response in; its text goes to the log."""
        called = False
        async with aclosing(self._provider.respond(request)) as events:
            async for event in events:
                if not called:
                    called = True
                    await areach("turn.provider_called")
                match event:
                    case Started():
                        self.response_id = event.response_id
                    case TextDelta():
                        await self._write(event.text)
                    case Completed() | Cancelled():
                        return event
        raise ProviderFailed(ErrorCode.TRUNCATED_STREAM)

    def _last(self, response: Completed) -> Ending:
        """Return the end of a turn whose last response asks for nothing more."""
        if response.incomplete:
            return _end(response, ErrorCode.RESPONSE_INCOMPLETE)
        if not response.text.strip() and not self._has_spoken:
            return _end(response, ErrorCode.EMPTY_OUTPUT)
        return _end(response, None)

    async def _write(self, text: str) -> None:
        room = self._question.limits.text_bytes - self._text_bytes
        kept = cut_utf8(text, room)
        self._text_bytes += len(kept.encode())
        if kept:
            await self._log.write(self._fence, kept)
        if kept != text:
            raise BoundExceeded(ErrorCode.ASSISTANT_MESSAGE_LIMIT_REACHED)

    async def _store_calls(self, step: ProviderStep, response: Completed) -> list[ToolStep]:
        """Complete the provider step and store its calls, together, before any runs."""
        last_seq = await self._log.flushed(self._fence)
        store = partial(
            transitions.complete_provider_step,
            self._fence,
            step.pk,
            response_id=response.response_id,
            usage=response.usage,
            last_seq=last_seq,
            calls=[self._judged(call) for call in response.calls],
            anomaly_count=response.anomalies,
        )
        # asked again it answers with what it stored
        steps = await confirmed(store, lambda: None)
        await areach("turn.provider_step_completed")
        return steps

    def _judged(self, call: ToolCall) -> RequestedCall:
        """Return the call with what is known before it is stored: some can never run."""
        tool = self._tools.get(call.name)
        told = RequestedCall(
            call_id=call.call_id,
            item_id=call.item_id or "",
            name=call.name,
            arguments=call.arguments,
            effect=self._tools.effect_of(call.name),
        )
        if self._last_request_because is not None:
            return _never(told, ToolFailed(self._last_request_because))
        if tool is None:
            state = ToolStep.State.UNAVAILABLE
            return _never(told, ToolFailed(ErrorCode.UNKNOWN_TOOL, state=state))
        try:
            tool.parse(call.arguments)
        except ToolFailed as failed:
            return _never(told, failed)
        return told

    async def _run_tools(self, steps: Sequence[ToolStep]) -> None:
        """Run what waits to be started: reading calls side by side, the others one by one."""
        waiting = [step for step in steps if step.state == ToolStep.State.REQUESTED]
        if waiting:
            await areach("turn.tool_requested")
        for reads_only, group in groupby(
            waiting, key=lambda step: step.effect == ToolStep.Effect.READ
        ):
            if not reads_only:
                for step in group:
                    await self._run_tool(step)
                continue
            try:
                async with asyncio.TaskGroup() as side_by_side:
                    for step in group:
                        side_by_side.create_task(self._run_tool(step))
            except ExceptionGroup as several:
                raise several.exceptions[0] from None

    async def _run_tool(self, step: ToolStep) -> None:
        started = await confirmed(
            partial(transitions.start_tool_step, self._fence, step.pk),
            partial(_running, self._fence, step.call_id),
        )
        await areach("turn.tool_running")
        tool = self._tools.get(started.name)
        if tool is None:
            raise LookupError("a tool that was there when its call was stored is gone")
        arguments = tool.parse(started.arguments)
        outcome = await invoke(tool, self._invocation(started.invocation_key, arguments))
        finish = partial(
            transitions.finish_tool_step,
            self._fence,
            step.pk,
            outcome.state,
            result=outcome.result,
            error_code=outcome.error_code,
        )
        # the same outcome twice is one outcome
        await confirmed(finish, lambda: None)
        await areach("turn.outcome_committed")

    def _invocation(self, key: UUID, arguments: Arguments) -> Invocation[Arguments]:
        return Invocation(
            owner_id=self._question.owner_id,
            conversation_id=self._question.conversation_id,
            turn_id=self._fence.pk,
            user_message_id=self._question.user_message_id,
            key=key,
            arguments=arguments,
        )


def _running(fence: Fence, call_id: str) -> ToolStep | None:
    """Return the step if it runs: that was us, since nobody else could have started it."""
    step = transitions.tool_step_called(fence, call_id)
    return step if step is not None and step.state == ToolStep.State.RUNNING else None


def _never(call: RequestedCall, failed: ToolFailed) -> RequestedCall:
    return replace(call, state=failed.state, error_code=failed.code, result=failed.result)


def _end(response: Completed, code: ErrorCode | None) -> Ending:
    return Ending(
        Turn.State.COMPLETED if code is None else Turn.State.FAILED,
        code,
        response.response_id,
        response.usage,
        # what was streamed stays, unless the service ended by saying something else
        response.text if response.anomalies else None,
    )
