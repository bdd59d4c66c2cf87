"""Requests to a provider: stored before they are sent, and what came back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, connection, transaction
from django.db.models import Max
from django.db.models.functions import Now

from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition
from recovery.fences import Fence
from turns.limits import Limits
from turns.models import ProviderStep, Receipt, ToolStep, Turn
from turns.transitions.calls import (
    RequestedCall,
    repeated,
    require_within_bounds,
    steps_called,
    store_calls,
)
from turns.transitions.endings import usage_of
from turns.transitions.locks import lock_owned


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is about to be sent, without its words: names, digests, counts."""

    provider_api: str
    model: str
    instructions_digest: str
    input_digest: str
    tools_digest: str
    request_digest: str
    message_count: int
    byte_count: int
    offers_tools: bool

    def of_step(self) -> dict[str, Any]:
        """Return what its provider step keeps of it."""
        return {
            "model": self.model,
            "request_digest": self.request_digest,
            "request_bytes": self.byte_count,
            "offers_tools": self.offers_tools,
        }


@transaction.atomic(durable=True)
def capture_receipt(fence: Fence, request: RequestFacts) -> ProviderStep:
    """Store what the turn sends, and its first provider step as started. Then it may be sent.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the turn is to stop. Nothing was written.
        IllegalTransition: the receipt is there already. Nothing was written.
    """
    turn = lock_owned(fence, starting=True)
    if Receipt.objects.filter(turn_id=turn.pk).exists():
        raise IllegalTransition("the receipt was captured before")
    Receipt.objects.create(
        turn_id=turn.pk,
        generation=fence.generation,
        provider_api=request.provider_api,
        model=request.model,
        instructions_digest=request.instructions_digest,
        input_digest=request.input_digest,
        tools_digest=request.tools_digest,
        message_count=request.message_count,
        byte_count=request.byte_count,
    )
    return _start(turn, fence, request, sequence=1)


@transaction.atomic(durable=True)
def start_provider_step(fence: Fence, request: RequestFacts) -> ProviderStep:
    """Store the turn's next provider step as started. Then the request may be sent.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the turn is to stop. Nothing was written.
        IllegalTransition: the step before, or one of its calls, has not ended. Nothing was
            written.
        BoundExceeded: `provider_step_limit_reached`. Nothing was written.
    """
    turn = lock_owned(fence, starting=True)
    steps = ProviderStep.objects.filter(turn_id=turn.pk)
    last = steps.aggregate(last=Max("sequence"))["last"]
    if last is None or steps.filter(state=ProviderStep.State.STARTED).exists():
        raise IllegalTransition("the provider step before has not ended")
    calls = ToolStep.objects.filter(turn_id=turn.pk)
    if calls.filter(state__in=sorted(ToolStep.LIFECYCLE.open)).exists():
        raise IllegalTransition("a tool step has not ended")
    if last >= Limits.stored(turn.limits).provider_steps:
        raise BoundExceeded(ErrorCode.PROVIDER_STEP_LIMIT_REACHED)
    return _start(turn, fence, request, sequence=last + 1)


def _start(turn: Turn, fence: Fence, request: RequestFacts, *, sequence: int) -> ProviderStep:
    return ProviderStep.objects.create(
        turn_id=turn.pk, generation=fence.generation, sequence=sequence, **request.of_step()
    )


@transaction.atomic(durable=True)
def complete_provider_step(
    fence: Fence,
    step_id: int,
    *,
    response_id: str | None,
    usage: dict[str, int] | None,
    last_seq: int | None,
    calls: Sequence[RequestedCall],
    anomaly_count: int = 0,
) -> list[ToolStep]:
    """Store the end of a response and the calls it asked for; return their steps in order.

    A call id seen before in this turn with the same identity returns the step already there,
    which never runs again. Calls past the turn's limit are stored failed with
    `tool_call_limit_reached`. Completing a step again with the same response returns its calls
    as they are now.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        IllegalTransition: the step ended differently. Nothing was written.
        Refused: `provider_call_id_conflict`, one call id for two calls. Nothing was written.
        BoundExceeded: `tool_call_limit_reached`, past the hard stop; or `provider_protocol`, an
            id or the usage is larger than allowed. Nothing was written.
    """
    turn = lock_owned(fence)
    step = ProviderStep.objects.get(pk=step_id, turn_id=turn.pk)
    if step.state == ProviderStep.State.COMPLETED and step.response_id == response_id:
        return steps_called(ToolStep, calls, of={"turn_id": turn.pk})
    ProviderStep.LIFECYCLE.require(step.state, ProviderStep.State.COMPLETED)
    try:
        steps = store_calls(
            ToolStep,
            calls,
            of={"turn_id": turn.pk},
            limits=Limits.stored(turn.limits),
            born={"provider_step_id": step.pk, "generation": fence.generation},
        )
        ProviderStep.objects.filter(pk=step.pk).update(
            state=ProviderStep.State.COMPLETED,
            response_id=response_id,
            usage=usage,
            last_seq=last_seq,
            text_length=_text_length(turn.pk, last_seq),
            anomaly_count=anomaly_count,
            repeats=repeated(steps, step.pk),
            finished_at=Now(),
        )
        Receipt.objects.filter(turn_id=turn.pk).update(usage=usage_of(turn.pk))
        return steps
    except DatabaseError as refused:
        require_within_bounds(refused)
        raise


def _text_length(turn_id: int, last_seq: int | None) -> int:
    """Return how many characters the turn's text has up to `last_seq`."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT coalesce(sum(char_length(text)), 0) FROM turns_textchunk "
            "WHERE turn_id = %s AND seq <= %s",
            [turn_id, last_seq or 0],
        )
        (length,) = cursor.fetchone()
    return int(length)
