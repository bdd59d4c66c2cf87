"""A requested call starts at most once, over all generations, and has one outcome."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, IllegalTransition, Refused
from recovery.fences import Fence
from turns.transitions.calls import bounded_result
from work.models import WorkStep
from work.transitions.locks import lock_owned


@transaction.atomic(durable=True)
def start_step(fence: Fence, step_id: int) -> WorkStep:
    """Mark the call as running. Only who gets the step back may run the tool, and once.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the job is to stop. Nothing was written.
        IllegalTransition: it was started before, or has ended. Nothing was written.
    """
    lock_owned(fence, starting=True)
    mine = WorkStep.objects.filter(pk=step_id, job_id=fence.pk)
    started = mine.filter(state=WorkStep.State.REQUESTED).update(
        state=WorkStep.State.RUNNING, started_at=Now(), write_mark=fence.next_mark()
    )
    if not started:
        raise IllegalTransition("the call does not wait to be started")
    return mine.get()


@transaction.atomic(durable=True)
def finish_step(
    fence: Fence,
    step_id: int,
    state: WorkStep.State,
    *,
    result: str = "",
    error_code: ErrorCode | None = None,
) -> WorkStep:
    """Store what came of the call. The same outcome again returns the same row.

    A result past its bound is cut with a mark; size and digest are those of the whole.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        IllegalTransition: the call has not been started. Nothing was written.
        Refused: `tool_outcome_conflict`, it has another outcome already. Nothing was written.
    """
    lock_owned(fence)
    mine = WorkStep.objects.filter(pk=step_id, job_id=fence.pk)
    step = mine.get()
    kept = bounded_result(result)
    code = (
        "" if state == WorkStep.State.SUCCEEDED else (error_code or ErrorCode.TOOL_FAILED).value
    )
    if step.state in WorkStep.LIFECYCLE.terminal:
        if (step.state, step.error_code, step.result_digest) != (state, code, kept.digest):
            raise Refused(ErrorCode.TOOL_OUTCOME_CONFLICT)
        transaction.set_rollback(True)
        return step
    WorkStep.LIFECYCLE.require(step.state, state)
    mine.update(
        state=state,
        error_code=code,
        result=kept.text,
        result_digest=kept.digest,
        result_bytes=kept.bytes,
        finished_at=Now(),
        write_mark=fence.next_mark(),
    )
    return mine.get()
