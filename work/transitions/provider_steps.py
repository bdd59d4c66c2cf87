"""Requests of a job to a provider: stored before they are sent, and what came back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from django.db import DatabaseError, IntegrityError, transaction
from django.db.models.functions import Now

from recovery.arrays import array, records, typed
from recovery.bounds import storable
from recovery.constraints import violated_constraint
from recovery.errors import BoundExceeded, ErrorCode, IllegalTransition
from recovery.fences import GENERATION_SHIFT_BITS, Fence, claimed_mark
from recovery.statements import MOVED_SQL, run, stored
from turns import events
from turns.transitions import RequestedCall, RequestFacts
from turns.transitions.calls import (
    columns_of,
    repeated,
    require_within_bounds,
    steps_called,
    store_calls,
)
from work.limits import JobLimits
from work.models import WorkJob, WorkProviderStep, WorkStep
from work.transitions.locks import OWNED, STARTING, lock_owned, presented, refusal

# What the database tells of a step that begins.
_BEGUN: Final = ("id", "job_id", "generation", "sequence", "state", "started_at")
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
        RETURNING {", ".join(_BEGUN)}
    )
    SELECT raised.id, born.* FROM raised LEFT JOIN born ON true
    WHERE {MOVED_SQL.format(moved="born.id IS NOT NULL")}
"""  # noqa: S608  constants
# What stops a start that waited while its own owner began a step: it saw those before alone.
_BEGUN_MEANWHILE: Final = frozenset(
    f"work_workproviderstep_{rule}" for rule in ("one_per_sequence", "one_open_per_job")
)
# What a new step has of its call, with the type of each.
_CALL: Final = {
    "call_id": "text",
    "item_id": "text",
    "name": "text",
    "effect": "text",
    "arguments": "text",
    "arguments_digest": "text",
    "invocation_key": "uuid",
    "state": "text",
    "error_code": "text",
    "result": "text",
    "result_digest": "text",
    "result_bytes": "bigint",
}
# What the database tells of each.
_CALLED: Final = ("sequence", "id", "requested_at", "finished_at")
# Where every call is new and within the limit, as nearly always; else each is judged by itself.
_COMPLETE: Final = f"""
    WITH {OWNED}, fitting AS MATERIALIZED (
        SELECT mine.id, earlier.count FROM mine CROSS JOIN (
            SELECT count(*) AS count,
                count(*) FILTER (WHERE call_id = ANY(%(call_ids)s::text[])) AS known
            FROM work_workstep WHERE job_id = %(job)s
        ) AS earlier
        WHERE earlier.known = 0
            AND earlier.count + %(count)s <= (mine.budget ->> 'tool_calls')::int
            AND octet_length(%(text)s::text) <= (mine.budget ->> 'text_bytes')::int
    ), completed AS (
        UPDATE work_workproviderstep p SET state = 'completed', response_id = %(response_id)s,
            usage = %(usage)s::jsonb, text = %(text)s::text, anomaly_count = %(anomaly_count)s,
            finished_at = statement_timestamp()
        FROM fitting WHERE p.id = %(request)s AND p.job_id = %(job)s AND p.state = 'started'
        RETURNING p.id
    ), called AS (
        INSERT INTO work_workstep (job_id, provider_step_id, generation, write_mark, sequence,
            finished_at, {", ".join(_CALL)})
        SELECT fitting.id, completed.id, %(generation)s,
            %(generation)s::bigint << {GENERATION_SHIFT_BITS}, fitting.count + call.n,
            CASE WHEN call.state <> 'requested' THEN statement_timestamp() END,
            {", ".join(f"call.{name}" for name in _CALL)}
        FROM completed CROSS JOIN fitting CROSS JOIN
            ROWS FROM (json_to_recordset(%(calls)s::json) AS ({typed(_CALL)}))
            WITH ORDINALITY AS call({", ".join(_CALL)}, n)
        RETURNING {", ".join(_CALLED)}
    )
    SELECT raised.id, called.*
    FROM raised LEFT JOIN completed ON true LEFT JOIN called ON true
    WHERE {MOVED_SQL.format(moved="completed.id IS NOT NULL")}
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
    try:
        started = run(_START, presented(fence, **request.of_step()))
    except IntegrityError as error:
        if violated_constraint(error) not in _BEGUN_MEANWHILE:
            raise
        started = []
    if not started:
        refused = refusal(fence, "a step has not ended", starting=True)
        if type(refused) is IllegalTransition and _used_up(fence.pk):
            refused = BoundExceeded(ErrorCode.PROVIDER_STEP_LIMIT_REACHED)
        raise refused
    [(conversation_id, *values)] = started
    events.announce_on_commit(conversation_id)
    return stored(WorkProviderStep, dict(zip(_BEGUN, values, strict=True)))


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
        BoundExceeded: `tool_call_limit_reached` past the hard stop; `response_too_large`; or
            `provider_protocol`, an id or the usage is larger than allowed. Nothing was written.
    """
    try:
        text = storable(text)
        fresh = [columns_of(call) for call in calls]
        call_ids = {columns["call_id"] for columns in fresh}
        if len(call_ids) == len(fresh):
            response = {
                "request": step_id,
                "response_id": response_id,
                "usage": None if usage is None else json.dumps(usage),
                "text": text,
                "anomaly_count": anomaly_count,
                "count": len(fresh),
                "calls": records(fresh),
                "call_ids": array(call_ids),
            }
            completed = run(_COMPLETE, presented(fence, **response))
            if completed:
                events.announce_on_commit(completed[0][0])
                born = {"job_id": fence.pk, **_born(fence, step_id), "started_at": None}
                told = sorted(row[1:] for row in completed if calls)
                return [
                    stored(
                        WorkStep, {**columns, **born, **dict(zip(_CALLED, row, strict=True))}
                    )
                    for columns, row in zip(fresh, told, strict=True)
                ]
        return _complete(
            fence,
            step_id,
            response_id=response_id,
            usage=usage,
            text=text,
            calls=calls,
            anomaly_count=anomaly_count,
        )
    except DatabaseError as refused:
        require_within_bounds(refused)
        raise


@transaction.atomic(durable=True)
def _complete(
    fence: Fence,
    step_id: int,
    *,
    response_id: str | None,
    usage: dict[str, int] | None,
    text: str,
    calls: Sequence[RequestedCall],
    anomaly_count: int,
) -> list[WorkStep]:
    """Complete it, each call judged by itself; or raise why it cannot be completed."""
    job = lock_owned(fence)
    limits = JobLimits.stored(job.budget)
    if len(text.encode()) > limits.text_bytes:
        raise BoundExceeded(ErrorCode.RESPONSE_TOO_LARGE)
    step = WorkProviderStep.objects.get(pk=step_id, job_id=job.pk)
    if step.state == WorkProviderStep.State.COMPLETED and step.response_id == response_id:
        return steps_called(WorkStep, calls, of={"job_id": job.pk})
    WorkProviderStep.LIFECYCLE.require(step.state, WorkProviderStep.State.COMPLETED)
    steps = store_calls(
        WorkStep,
        calls,
        of={"job_id": job.pk},
        limits=limits,
        born=_born(fence, step.pk),
    )
    WorkProviderStep.objects.filter(pk=step.pk).update(
        state=WorkProviderStep.State.COMPLETED,
        response_id=response_id,
        usage=usage,
        text=text,
        anomaly_count=anomaly_count,
        repeats=repeated(steps, step.pk),
        finished_at=Now(),
    )
    return steps


def _born(fence: Fence, provider_step_id: int) -> dict[str, int]:
    """Return what a new step has beside its call."""
    return {
        "provider_step_id": provider_step_id,
        "generation": fence.generation,
        "write_mark": claimed_mark(fence.generation),
    }
