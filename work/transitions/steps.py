"""A requested call starts at most once, over all generations, and has one outcome."""

from __future__ import annotations

from typing import Final

from django.db import connection

from recovery.errors import ErrorCode, IllegalTransition, Refused
from recovery.fences import Fence
from recovery.statements import known_row, run
from turns import events
from turns.transitions.calls import bounded_result
from work.models import WorkStep
from work.transitions.locks import OWNED, RAISED, STARTING, next_mark_sql, presented, refusal

_FIELDS: Final = [field.attname for field in WorkStep._meta.concrete_fields]
_COLUMNS: Final = ", ".join(f"s.{name}" for name in _FIELDS)
_START: Final = f"""
    WITH {STARTING}, started AS (
        UPDATE work_workstep s SET state = 'running', started_at = statement_timestamp(),
            write_mark = {next_mark_sql("s")}
        FROM mine WHERE s.id = %(step)s AND s.job_id = mine.id AND s.state = 'requested'
        RETURNING mine.conversation_id, {_COLUMNS}
    ), {RAISED.format(written="started")}
    SELECT * FROM started
"""  # noqa: S608  constants
_FINISH: Final = f"""
    WITH {OWNED}, finished AS (
        UPDATE work_workstep s SET state = %(state)s, error_code = %(code)s,
            result = %(result)s, result_digest = %(digest)s, result_bytes = %(bytes)s,
            finished_at = statement_timestamp(), write_mark = {next_mark_sql("s")}
        FROM mine WHERE s.id = %(step)s AND s.job_id = mine.id
            AND (s.state = 'running' OR s.state = 'requested' AND %(state)s <> 'succeeded')
        RETURNING mine.conversation_id
    ), {RAISED.format(written="finished")}
    SELECT conversation_id FROM finished
"""  # noqa: S608  constants


def start_step(fence: Fence, step_id: int) -> WorkStep:
    """Mark the call as running. Only who gets the step back may run the tool, and once.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the job is to stop. Nothing was written.
        IllegalTransition: it was started before, or has ended. Nothing was written.
    """
    started = run(_START, presented(fence, step=step_id))
    if not started:
        raise refusal(fence, "the call does not wait to be started", starting=True)
    [(conversation_id, *values)] = started
    events.announce_on_commit(conversation_id)
    return WorkStep.from_db(connection.alias, _FIELDS, values)


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
    kept = bounded_result(result)
    code = (
        "" if state == WorkStep.State.SUCCEEDED else (error_code or ErrorCode.TOOL_FAILED).value
    )
    outcome = {
        "state": state.value,
        "code": code,
        "result": kept.text,
        "digest": kept.digest,
        "bytes": kept.bytes,
    }
    finished = run(_FINISH, presented(fence, step=step_id, **outcome))
    if finished:
        events.announce_on_commit(finished[0][0])
        return known_row(
            WorkStep,
            id=step_id,
            job_id=fence.pk,
            state=state.value,
            error_code=code,
            result=kept.text,
            result_digest=kept.digest,
            result_bytes=kept.bytes,
        )
    refused = refusal(fence, "the call has not been started")
    step = WorkStep.objects.filter(pk=step_id, job_id=fence.pk).first()
    if isinstance(refused, IllegalTransition) and step and step.finished_at is not None:
        if (step.state, step.error_code, step.result_digest) == (state, code, kept.digest):
            return step
        refused = Refused(ErrorCode.TOOL_OUTCOME_CONFLICT)
    raise refused
