"""A requested call starts at most once, and has one outcome."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from recovery.errors import ErrorCode, IllegalTransition, StaleFence
from recovery.fences import Fence
from turns.models import ToolStep
from turns.models.steps import ToolStepFields
from turns.transitions.calls import CallOutcome
from turns.transitions.locks import CancelRequested, lock_owned


def move_tool_steps(
    fence: Fence, *, ended: Sequence[CallOutcome] = (), starting: Sequence[int] = ()
) -> list[ToolStep]:
    """Store what came of calls and mark others as running, in one transaction; return these in
    the order of their calls.

    Only who gets a step back may run its tool, and once. The same outcome again changes
    nothing. An outcome is kept even where nothing may be started any more.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the turn is to stop. The outcomes are stored, nothing was started.
        IllegalTransition: one of `starting` was started before, or has ended: the outcomes are
            stored, nothing was started. Or a call that was not started has an outcome: nothing
            was written.
        Refused: `tool_outcome_conflict`, a call has another outcome. Nothing was written.
    """
    started, refused = _move(fence, ended, starting)
    if refused is not None:
        raise refused
    return started


@transaction.atomic(durable=True)
def _move(
    fence: Fence, ended: Sequence[CallOutcome], starting: Sequence[int]
) -> tuple[list[ToolStep], IllegalTransition | None]:
    turn = lock_owned(fence)
    steps = ToolStep.objects.filter(turn_id=turn.pk)
    has_ended = [_store(steps, outcome) for outcome in ended]
    waiting = steps.filter(pk__in=starting, state=ToolStep.State.REQUESTED)
    refused: IllegalTransition | None = None
    if starting and turn.cancel_requested_at is not None:
        refused = CancelRequested()
    elif starting and waiting.count() != len(starting):
        refused = IllegalTransition("a tool step does not wait to be started")
    is_starting = bool(starting) and refused is None
    if is_starting:
        waiting.update(state=ToolStep.State.RUNNING, started_at=Now())
    if not is_starting and not any(has_ended):
        transaction.set_rollback(True)
    started = steps.filter(pk__in=starting).order_by("sequence") if is_starting else ()
    return list(started), refused


def _store(steps: QuerySet[ToolStep], outcome: CallOutcome) -> bool:
    """Store an outcome; return False when the step has it already."""
    mine = steps.filter(pk=outcome.step_id)
    step = mine.get()
    if step.state in ToolStep.LIFECYCLE.terminal:
        outcome.require_stored_in(step)
        return False
    ToolStep.LIFECYCLE.require(step.state, outcome.state)
    mine.update(
        state=outcome.state,
        error_code=outcome.error_code,
        result=outcome.result.text,
        result_digest=outcome.result.digest,
        result_bytes=outcome.result.bytes,
        finished_at=Now(),
    )
    return True


def start_tool_step(fence: Fence, tool_step_id: int) -> ToolStep:
    """Mark one call as running: see `move_tool_steps`."""
    (started,) = move_tool_steps(fence, starting=[tool_step_id])
    return started


def finish_tool_step(
    fence: Fence,
    tool_step_id: int,
    state: ToolStep.State,
    *,
    result: str = "",
    error_code: ErrorCode | None = None,
) -> ToolStep:
    """Store what came of one call: see `move_tool_steps`. Return its row."""
    outcome = CallOutcome.of(tool_step_id, state, result=result, error_code=error_code)
    move_tool_steps(fence, ended=[outcome])
    return ToolStep.objects.get(pk=tool_step_id, turn_id=fence.pk)


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
