"""Requests of a job to a provider: stored before they are sent, and what came back."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from recovery.bounds import storable
from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition
from recovery.fences import Fence, claimed_mark
from turns.transitions import RequestedCall, RequestFacts
from turns.transitions.calls import steps_called, store_calls
from work.limits import JobLimits
from work.models import WorkProviderStep, WorkStep
from work.transitions.locks import lock_owned


@transaction.atomic(durable=True)
def start_provider_step(fence: Fence, request: RequestFacts) -> WorkProviderStep:
    """Store the job's next provider step as started. Then the request may be sent.

    Steps are counted over all generations.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the job is to stop. Nothing was written.
        IllegalTransition: the step before, or a call, has not ended. Nothing was written.
        BoundExceeded: `provider_step_limit_reached`. Nothing was written.
    """
    job = lock_owned(fence, starting=True)
    steps = WorkProviderStep.objects.filter(job_id=job.pk)
    if steps.filter(state=WorkProviderStep.State.STARTED).exists():
        raise IllegalTransition("the provider step before has not ended")
    calls = WorkStep.objects.filter(job_id=job.pk)
    if calls.filter(state__in=sorted(WorkStep.LIFECYCLE.open)).exists():
        raise IllegalTransition("a call has not ended")
    last = steps.aggregate(last=Max("sequence"))["last"] or 0
    if last >= JobLimits.stored(job.budget).provider_steps:
        raise BoundExceeded(ErrorCode.PROVIDER_STEP_LIMIT_REACHED)
    return WorkProviderStep.objects.create(
        job_id=job.pk, generation=fence.generation, sequence=last + 1, **request.of_step()
    )


@transaction.atomic(durable=True)
def complete_provider_step(
    fence: Fence,
    step_id: int,
    *,
    response_id: str | None,
    usage: dict[str, int] | None,
    text: str,
    calls: Sequence[RequestedCall],
    anomaly_count: int = 0,
) -> list[WorkStep]:
    """Store what a response said and the calls it asked for; return their steps in order.

    A call id seen before in this job with the same identity returns the step already there,
    which never runs again. Calls past the job's limit are stored failed with
    `tool_call_limit_reached`. Completing a step again with the same response returns its calls
    as they are now.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        IllegalTransition: the step ended differently. Nothing was written.
        Refused: `provider_call_id_conflict`, one call id for two calls. Nothing was written.
        BoundExceeded: `tool_call_limit_reached` past the hard stop, or `response_too_large`.
            Nothing was written.
    """
    job = lock_owned(fence)
    limits = JobLimits.stored(job.budget)
    text = storable(text)
    if len(text.encode()) > limits.text_bytes:
        raise BoundExceeded(ErrorCode.RESPONSE_TOO_LARGE)
    step = WorkProviderStep.objects.get(pk=step_id, job_id=job.pk)
    if step.state == WorkProviderStep.State.COMPLETED and step.response_id == response_id:
        return steps_called(WorkStep, calls, of={"job_id": job.pk})
    WorkProviderStep.LIFECYCLE.require(step.state, WorkProviderStep.State.COMPLETED)
    WorkProviderStep.objects.filter(pk=step.pk).update(
        state=WorkProviderStep.State.COMPLETED,
        response_id=response_id,
        usage=usage,
        text=text,
        anomaly_count=anomaly_count,
        finished_at=Now(),
    )
    return store_calls(
        WorkStep,
        calls,
        of={"job_id": job.pk},
        limits=limits,
        born={
            "provider_step_id": step.pk,
            "generation": fence.generation,
            "write_mark": claimed_mark(fence.generation),
        },
    )
