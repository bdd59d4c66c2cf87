"""Requests, text and tool calls, in turn, until a model has nothing more to ask for.

The order is the contract's: persist, commit, then the effect, then its outcome. One request is
made for each provider step and never sent again; a call runs only under the `running` row this
very task has confirmed; the next request is built from committed rows alone. What a turn or a
job keeps of this is its `Ledger`. Work that has changed hands goes on from its `Progress`.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import groupby
from typing import Any, Protocol
from uuid import UUID

from recovery.blanks import shows_something
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.probes import areach
from turns.confirmed import confirmed, read
from turns.models.steps import ProviderStepFields, ToolStepFields
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
from turns.tools.registry import Arguments, Effect, Invocation, Registry, State, ToolFailed
from turns.tools.runner import Outcome, failure, invoke
from turns.transitions import CallOutcome, CancelRequested, RequestedCall, RequestFacts


class End(StrEnum):
    """How work ends as far as the loop can tell."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the work is to end, and what is known of the provider step that is still open.

    `response` is the last one, if it came to its end; `limit` is what had made its request the
    last. A cancel has a code only where the service gave its response up.
    """

    end: End
    error_code: ErrorCode | None = None
    response_id: str | None = None
    usage: Usage | None = None
    response: Completed | None = None
    step_id: int | None = None
    limit: ErrorCode | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the work had come when this claim began.

    `waiting` are the calls that were asked for and not started.
    """

    requests: int = 0
    waiting: Sequence[ToolStepFields] = ()
    has_spoken: bool = False
    limit: ErrorCode | None = None


class Ledger(Protocol):
    """The durable rows of one piece of work under one fence; the loop writes through it alone.

    The plain methods run in a database thread. Those that write are one transition each, and
    raise `StaleFence` once the fence is lost; those that start something raise
    `CancelRequested` once somebody asked for an end. `request_at` and `running_calls` tell on a
    new connection what became of a start whose commit is unknown; completing again, and the
    same outcome again, answer with what is stored.
    """

    @property
    def word(self) -> str:
        """What the probes of this work begin with."""

    def request(
        self, sequence: int, *, provider_api: str, offer_tools: bool
    ) -> tuple[TextRequest, RequestFacts]:
        """Return the request of provider step `sequence`, built from committed rows."""

    def start_request(self, sequence: int, facts: RequestFacts, /) -> ProviderStepFields:
        """Store the provider step as started. Then its request may be sent, once."""

    def request_at(self, sequence: int) -> ProviderStepFields | None:
        """Return the provider step if it was started and is open."""

    def complete_request(
        self, step_id: int, response: Completed, calls: Sequence[RequestedCall]
    ) -> Sequence[ToolStepFields]:
        """Store the end of a response and the calls it asked for, before any of them runs."""

    def move_calls(
        self, ended: Sequence[CallOutcome], starting: Sequence[ToolStepFields]
    ) -> Sequence[ToolStepFields]:
        """Store what came of calls, and mark others as running, together.

        Only who gets a step back may run its tool, and once. The outcomes are stored even where
        nothing may be started any more.
        """

    def running_calls(self, steps: Sequence[ToolStepFields]) -> Sequence[ToolStepFields] | None:
        """Return the steps, one at least, if all run: that was us, as nobody else could have
        started them."""

    async def write(self, text: str) -> None:
        """Take what the model says, as it arrives.

        Raises:
            BoundExceeded: that is more than the work may say.
            TextNotStored: the database was away for too long.
        """

    async def flushed(self) -> None:
        """Return once everything said is as durable as this ledger keeps it."""


class ToolLoop:
    """One piece of work under one fence. It writes nothing but through its ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        provider: TextProvider,
        tools: Registry,
        invocation: Callable[[UUID, Arguments], Invocation[Arguments]],
        provider_steps_max: int,
        progress: Progress | None = None,
    ) -> None:
        self._ledger = ledger
        self._provider = provider
        self._tools = tools
        self._invocation = invocation
        self._provider_steps_max = provider_steps_max
        progress = progress or Progress()
        self._requests = progress.requests
        self._waiting = progress.waiting
        # whether an earlier response said something besides its calls
        self._has_spoken = progress.has_spoken
        # what forbids more calls, once something does
        self._limit = progress.limit
        # what is known of the response being received, for an end that cuts it short
        self.response_id: str | None = None
        self._step_id: int | None = None

    async def run(self) -> Ending:
        """Do the work; return how it is to end. Nothing has ended it yet.

        Raises:
            StaleFence: the work is not ours any more.
        """
        try:
            return await self._run()
        except CancelRequested:
            return Ending(End.CANCELLED, response_id=self.response_id)
        except ProviderFailed as failed:
            response_id = failed.response_id or self.response_id
            if failed.code == ErrorCode.EMPTY_OUTPUT and self._has_spoken:
                # It said what it had to say before its last call, and adds nothing.
                empty = Completed(
                    response_id, "", (), failed.usage, incomplete=False, anomalies=0
                )
                return self._ending(empty, None)
            return Ending(End.FAILED, failed.code, response_id, failed.usage)
        except (BoundExceeded, Refused, TextNotStored) as refused:
            return Ending(End.FAILED, refused.code, self.response_id)

    async def _run(self) -> Ending:
        await self._run_calls(self._waiting)
        while True:
            request = await self._started()
            response = await self._response(request)
            if isinstance(response, Cancelled):
                code = ErrorCode.PROVIDER_CANCELLED
                return Ending(End.CANCELLED, code, response.response_id, response.usage)
            if not response.calls or response.incomplete:
                return self._last(response)
            if response.anomalies:
                # Calls of a response that contradicts itself are not executed.
                return self._ending(response, ErrorCode.PROVIDER_PROTOCOL)
            try:
                steps = await self._store_calls(response)
            except (BoundExceeded, Refused) as refused:
                return self._ending(response, refused.code)
            self._has_spoken = self._has_spoken or shows_something(response.text)
            self.response_id = self._step_id = None
            if self._limit is not None:
                return Ending(End.FAILED, self._limit, limit=self._limit)
            await self._run_calls(steps)
            if any(step.error_code == ErrorCode.TOOL_CALL_LIMIT_REACHED for step in steps):
                self._limit = ErrorCode.TOOL_CALL_LIMIT_REACHED
            await self._reach("between_steps")

    async def _started(self) -> TextRequest:
        """Return the next request, whose provider step is stored; one past a limit is the last
        and asks for a report alone."""
        is_first, self._requests = self._requests == 0, self._requests + 1
        if self._requests >= self._provider_steps_max:
            self._limit = ErrorCode.PROVIDER_STEP_LIMIT_REACHED
        request, facts = await read(
            partial(
                self._ledger.request,
                self._requests,
                provider_api=self._provider.api,
                offer_tools=self._limit is None,
            )
        )
        step = await confirmed(
            partial(self._ledger.start_request, self._requests, facts),
            partial(self._ledger.request_at, self._requests),
        )
        self._step_id = step.pk
        await self._reach("request_started" if is_first else "continuing")
        return request

    async def _response(self, request: TextRequest) -> Completed | Cancelled:
        """Send the request, once, and take the response in."""
        called = False
        async with aclosing(self._provider.respond(request)) as events:
            async for event in events:
                if not called:
                    called = True
                    await self._reach("provider_called")
                match event:
                    case Started():
                        self.response_id = event.response_id
                    case TextDelta():
                        await self._ledger.write(event.text)
                    case Completed() | Cancelled():
                        return event
        raise ProviderFailed(ErrorCode.TRUNCATED_STREAM)

    def _last(self, response: Completed) -> Ending:
        """Return the end of work whose last response asks for nothing more."""
        if response.incomplete:
            return self._ending(response, ErrorCode.RESPONSE_INCOMPLETE)
        if not shows_something(response.text) and not self._has_spoken:
            return self._ending(response, ErrorCode.EMPTY_OUTPUT)
        return self._ending(response, None)

    def _ending(self, response: Completed, code: ErrorCode | None) -> Ending:
        return Ending(
            End.COMPLETED if code is None else End.FAILED,
            code,
            response.response_id,
            response.usage,
            response,
            self._step_id,
            self._limit,
        )

    async def _store_calls(self, response: Completed) -> Sequence[ToolStepFields]:
        """Complete the provider step and store its calls, together, before any runs."""
        await self._ledger.flushed()
        assert self._step_id is not None  # noqa: S101 - the step of this response
        store = partial(
            self._ledger.complete_request,
            self._step_id,
            response,
            [self._judged(call) for call in response.calls],
        )
        steps = await confirmed(store, lambda: None)
        await self._reach("provider_step_completed")
        return steps

    def _judged(self, call: ToolCall) -> RequestedCall:
        """Return the call with what is known before it is stored: some can never run."""
        told = RequestedCall(
            call_id=call.call_id,
            item_id=call.item_id or "",
            name=call.name,
            arguments=call.arguments,
            effect=self._tools.effect_of(call.name),
        )
        try:
            if self._limit is not None:
                raise ToolFailed(self._limit)
            self._tools.require(call.name).parse(call.arguments)
        except ToolFailed as failed:
            return replace(
                told, state=failed.state, error_code=failed.code, result=failed.result
            )
        return told

    async def _run_calls(self, steps: Sequence[ToolStepFields]) -> None:
        """Run what waits to be started: reading calls side by side, the others one by one."""
        waiting = [step for step in steps if step.state == State.REQUESTED]
        if waiting:
            await self._reach("step_requested")
        ended: Sequence[CallOutcome] = ()
        for starting in _side_by_side(waiting):
            started = await self._move(ended, starting)
            ended = await self._outcomes(started)
        if ended:
            await self._move(ended, ())

    async def _move(
        self, ended: Sequence[CallOutcome], starting: Sequence[ToolStepFields]
    ) -> Sequence[ToolStepFields]:
        """Commit what came of the calls before with the start of the next: one commit fewer."""
        started = await confirmed(
            partial(self._ledger.move_calls, ended, starting),
            partial(self._ledger.running_calls, starting),
        )
        if ended:
            await self._reach("outcome_committed")
        return started

    async def _outcomes(self, started: Sequence[ToolStepFields]) -> Sequence[CallOutcome]:
        """Make the calls; return the outcomes that came last, which are still to be stored.

        Those that came before are stored as they come: all that are there when the commit of
        the ones before is done, with one commit.
        """
        running = {asyncio.create_task(self._outcome(step)) for step in started}
        try:
            while True:
                done, running = await asyncio.wait(running, return_when=FIRST_COMPLETED)
                ended = [call.result() for call in done]
                if not running:
                    return ended
                await self._move(ended, ())
        finally:
            for call in running:
                call.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _outcome(self, step: ToolStepFields) -> CallOutcome:
        """Make one call."""
        await self._reach("step_running")
        came = await self._called(step)
        return CallOutcome.of(
            step.pk, came.state, result=came.result, error_code=came.error_code
        )

    async def _called(self, step: ToolStepFields) -> Outcome:
        """Call the tool, which may have changed since the call was stored, or be gone."""
        try:
            tool = self._tools.require(step.name)
            arguments: Any = tool.parse(step.arguments)
        except ToolFailed as failed:
            return failure(failed)
        return await invoke(tool, self._invocation(step.invocation_key, arguments))

    async def _reach(self, point: str) -> None:
        await areach(f"{self._ledger.word}.{point}")


def _side_by_side(steps: Iterable[ToolStepFields]) -> Iterator[Sequence[ToolStepFields]]:
    """Yield the calls that run at the same time: neighbours that read, or one that writes."""
    for reads_only, group in groupby(steps, key=lambda step: step.effect == Effect.READ):
        if reads_only:
            yield list(group)
        else:
            yield from ([step] for step in group)
