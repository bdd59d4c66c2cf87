"""Requests of a job to a provider: stored before they are sent, and what came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db import connection, transaction
from django.db.models.functions import Now

from recovery.bounds import storable
from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition
from recovery.fences import Fence, claimed_mark
from recovery.statements import run
from turns import events
from turns.transitions import RequestedCall, RequestFacts
from turns.transitions.calls import steps_called, store_calls
from work.limits import JobLimits
from work.models import WorkJob, WorkProviderStep, WorkStep
from work.transitions.locks import RAISED, STARTING, lock_owned, presented, refusal

_FIELDS: Final = [field.attname for field in WorkProviderStep._meta.concrete_fields]
_START: Final = f"""
    WITH {STARTING}, born AS (
        INSERT INTO work_workproviderstep (job_id, generation, sequence, state, error_code,
            model, request_digest, request_bytes, offers_tools, anomaly_count, text)
        SELECT mine.id, %(generation)s, earlier.count + 1, 'started', '', %(model)s,
            %(request_digest)s, %(request_bytes)s, %(offers_tools)s, 0, ''
        FROM mine CROSS JOIN (
            SELECT count(*) AS count, count(*) FILTER (WHERE state = 'started') AS open
            FROM work_workproviderstep WHERE job_id = %(job)s
        ) AS earlier
        WHERE earlier.open = 0 AND earlier.count < (mine.budget ->> 'provider_steps')::int
            AND NOT EXISTS (SELECT FROM work_workstep s
                WHERE s.job_id = %(job)s AND s.state IN ('requested', 'running'))
        RETURNING {", ".join(_FIELDS)}
    ), {RAISED.format(written="born")}
    SELECT mine.conversation_id, born.* FROM mine, born
"""  # noqa: S608  constants


def start_provider_step(fence: Fence, request: RequestFacts) -> WorkProviderStep:
    """Store the job's next provider step as started. Then the request may be sent.

    Steps are counted over all generations.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the job is to stop. Nothing was written.
        IllegalTransition: the step before, or a call, has not ended. Nothing was written.
        BoundExceeded: `provider_step_limit_reached`. Nothing was written.
    """
    started = run(_START, presented(fence, **request.of_step()))
    if not started:
        refused = refusal(fence, "a step has not ended", starting=True)
        if type(refused) is IllegalTransition and _used_up(fence.pk):
            refused = BoundExceeded(ErrorCode.PROVIDER_STEP_LIMIT_REACHED)
        raise refused
    [(conversation_id, *values)] = started
    events.announce_on_commit(conversation_id)
    return WorkProviderStep.from_db(connection.alias, _FIELDS, values)


def _used_up(job_id: int) -> bool:
    """True when nothing is open and no more requests are allowed."""
    steps = WorkProviderStep.objects.filter(job_id=job_id)
    calls = WorkStep.objects.filter(job_id=job_id, state__in=sorted(WorkStep.LIFECYCLE.open))
    budget = WorkJob.objects.values_list("budget", flat=True).get(pk=job_id)
    return (
        not calls.exists()
        and not steps.filter(state=WorkProviderStep.State.STARTED).exists()
        and steps.count() >= JobLimits.stored(budget).provider_steps
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
