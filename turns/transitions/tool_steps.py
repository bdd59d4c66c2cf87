"""A requested call starts at most once, and has one outcome."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from turns.models import ToolStep
from turns.models.steps import ToolStepFields
from turns.transitions.calls import bounded_result
from turns.transitions.locks import lock_owned


@transaction.atomic(durable=True)
def start_tool_step(fence: Fence, tool_step_id: int) -> ToolStep:
    """Mark the call as running. Only who gets the step back may run the tool, and once.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the turn is to stop. Nothing was written.
        IllegalTransition: it was started before, or has ended. Nothing was written.
    """
    lock_owned(fence, starting=True)
    mine = ToolStep.objects.filter(pk=tool_step_id, turn_id=fence.pk)
    started = mine.filter(state=ToolStep.State.REQUESTED).update(
        state=ToolStep.State.RUNNING, started_at=Now()
    )
    if not started:
        raise IllegalTransition("the tool step does not wait to be started")
    return mine.get()


@transaction.atomic(durable=True)
def finish_tool_step(
    fence: Fence,
    tool_step_id: int,
    state: ToolStep.State,
    *,
    result: str = "",
    error_code: ErrorCode | None = None,
) -> ToolStep:
    """Store what came of the call. The same outcome again returns the same row.

    A result past its bound is cut with a mark; size and digest are those of the whole.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        IllegalTransition: the call has not been started. Nothing was written.
        Refused: `tool_outcome_conflict`, it has another outcome already. Nothing was written.
    """
    lock_owned(fence)
    mine = ToolStep.objects.filter(pk=tool_step_id, turn_id=fence.pk)
    step = mine.get()
    kept = bounded_result(result)
    code = (
        "" if state == ToolStep.State.SUCCEEDED else (error_code or ErrorCode.TOOL_FAILED).value
    )
    if step.state in ToolStep.LIFECYCLE.terminal:
        if (step.state, step.error_code, step.result_digest) != (state, code, kept.digest):
            raise Refused(ErrorCode.TOOL_OUTCOME_CONFLICT)
        transaction.set_rollback(True)
        return step
    ToolStep.LIFECYCLE.require(step.state, state)
    mine.update(
        state=state,
        error_code=code,
        result=kept.text,
        result_digest=kept.digest,
        result_bytes=kept.bytes,
        finished_at=Now(),
    )
    return mine.get()


def require_running(key: UUID) -> None:
    """Return when the call `key` runs, a turn's or a job's; its step stays locked.

    For the effect of a tool in this database: it commits before the call ends, or not at all.

    Raises:
        StaleFence: the call does not run any more.
    """
    for model in ToolStepFields.__subclasses__():
        steps = model._default_manager.select_for_update(no_key=True)
        step = steps.filter(invocation_key=key).first()
        if step is not None and step.state == ToolStep.State.RUNNING:
            return
    raise StaleFence
