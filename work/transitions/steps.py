"""A requested call starts at most once, over all generations, and has one outcome.

What came of calls and the start of others are one statement, however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from recovery.arrays import array, records, typed
from recovery.errors import ErrorCode, IllegalTransition, Refused
from recovery.fences import Fence
from recovery.statements import MOVED_SQL, run, stored
from turns import events
from turns.transitions.calls import CallOutcome
from work.models import WorkStep
from work.transitions.locks import (
    OWNED,
    next_mark_sql,
    presented,
    refusal,
)

# What a call gets by its start.
_MOVED: Final = ("id", "state", "sequence", "write_mark", "started_at")
# What is stored of an outcome, with the type of each.
_OUTCOME: Final = {
    "step_id": "bigint",
    "state": "text",
    "error_code": "text",
    "result": "text",
    "result_digest": "text",
    "result_bytes": "bigint",
}
_ENDED: Final = f"""
    ended AS (
        UPDATE work_workstep s SET state = o.state, error_code = o.error_code,
            result = o.result, result_digest = o.result_digest, result_bytes = o.result_bytes,
            finished_at = statement_timestamp(), write_mark = {next_mark_sql("s")}
        FROM mine CROSS JOIN json_to_recordset(%(outcomes)s::json) AS o({typed(_OUTCOME)})
        WHERE s.id = o.step_id AND s.job_id = mine.id
            AND (s.state = 'running' OR s.state = 'requested' AND o.state <> 'succeeded')
        RETURNING s.id
    )
"""  # noqa: S608  constants
_STARTED: Final = f"""
    started AS (
        UPDATE work_workstep s SET state = 'running', started_at = statement_timestamp(),
            write_mark = {next_mark_sql("s")}
        FROM mine WHERE s.id = ANY(%(starting)s::bigint[]) AND s.job_id = mine.id
            AND s.state = 'requested' AND mine.cancel_requested_at IS NULL {{and_only_where}}
        RETURNING {", ".join(f"s.{name}" for name in _MOVED)}
    )
"""  # noqa: S608  constants
# All are started or none: where some do not wait, or not any more, all of it is taken back.
_ALL_STARTED: Final = "cardinality(%(starting)s::bigint[]) = (SELECT count(*) FROM started)"
_ENDED_AND_ALL_OR_NONE: Final = f"""
    {_ALL_STARTED} OR ended.id IS NOT NULL AND NOT EXISTS (SELECT FROM started)
"""
_ALL_STORED: Final = "%(count)s = (SELECT count(*) FROM ended)"
_END: Final = f"""
    WITH {OWNED}, {_ENDED}
    SELECT raised.id, ended.id FROM raised LEFT JOIN ended ON true
    WHERE {MOVED_SQL.format(moved="ended.id IS NOT NULL")}
"""  # noqa: S608  constants
_START: Final = f"""
    WITH {OWNED}, {_STARTED.format(and_only_where="")}
    SELECT raised.id, NULL, started.* FROM raised LEFT JOIN started ON true
    WHERE {MOVED_SQL.format(moved=f"started.id IS NOT NULL AND {_ALL_STARTED}")}
"""  # noqa: S608  constants
_END_AND_START: Final = f"""
    WITH {OWNED}, {_ENDED}, {_STARTED.format(and_only_where=f"AND {_ALL_STORED}")}
    SELECT raised.id, ended.id, started.*
    FROM raised LEFT JOIN (ended FULL JOIN started ON false) ON true
    WHERE {MOVED_SQL.format(moved=_ENDED_AND_ALL_OR_NONE)}
"""  # noqa: S608  constants


def move_steps(
    fence: Fence, *, ended: Sequence[CallOutcome] = (), starting: Sequence[int] = ()
) -> list[WorkStep]:
    """Store what came of calls and mark others as running, in one transaction; return what that
    changed of these, in the order of their calls. What they were before is read when asked for.

    Only who gets a step back may run its tool, and once. The same outcome again changes
    nothing. An outcome is kept even where nothing may be started any more.

    Raises:
        StaleFence: another claim, or the end, has overtaken this one. Nothing was written.
        CancelRequested: the job is to stop. The outcomes are stored, nothing was started.
        IllegalTransition: one of `starting` was started before, or has ended; or a call that
            was not started has an outcome. Every other outcome is stored, nothing was started.
        Refused: `tool_outcome_conflict`, a call has another outcome. Every other outcome is
            stored, nothing was started. Where two are given for one call nothing was written.
    """
    ended = _one_each(ended)
    known, started = _move(fence, ended, starting)
    if not known and not started:
        refused = refusal(fence, "a call does not wait to be started")
        if not isinstance(refused, IllegalTransition):
            raise refused
    missing = [outcome for outcome in ended if outcome.step_id not in known]
    if missing:
        _require_stored(fence, missing)
        # it was a repetition, so what is to be started has waited
        return move_steps(fence, starting=starting) if starting else []
    if len(started) != len(starting):
        raise refusal(fence, "a call does not wait to be started", starting=True)
    return started


def _move(
    fence: Fence, ended: Sequence[CallOutcome], starting: Sequence[int]
) -> tuple[set[int], list[WorkStep]]:
    """Return which outcomes were stored, and the steps that were started."""
    starts = {"starting": array(starting)}
    ends = {"outcomes": records(map(_columns_of, ended)), "count": len(ended)}
    if not ended:
        rows = run(_START, presented(fence, **starts))
    elif not starting:
        rows = run(_END, presented(fence, **ends))
    else:
        rows = run(_END_AND_START, presented(fence, **starts, **ends))
        # the outcomes stay, even where not all could be started
        rows = rows or run(_END, presented(fence, **ends))
    known = {step_id for _, step_id, *_ in rows if step_id is not None}
    started = [
        stored(WorkStep, dict(zip(_MOVED, values, strict=True)))
        for _, step_id, *values in rows
        if step_id is None
    ]
    if rows:
        events.announce_on_commit(rows[0][0])
    return known, sorted(started, key=attrgetter("sequence"))


def _columns_of(outcome: CallOutcome) -> dict[str, str | int]:
    """Return what is stored of an outcome."""
    return {
        "step_id": outcome.step_id,
        "state": outcome.state,
        "error_code": outcome.error_code,
        "result": outcome.result.text,
        "result_digest": outcome.result.digest,
        "result_bytes": outcome.result.bytes,
    }


def _one_each(ended: Sequence[CallOutcome]) -> list[CallOutcome]:
    """Return the outcome of each call once.

    Raises:
        Refused: `tool_outcome_conflict`, a call has two: the statement would take either.
    """
    told: dict[int, CallOutcome] = {}
    for outcome in ended:
        if told.setdefault(outcome.step_id, outcome) != outcome:
            raise Refused(ErrorCode.TOOL_OUTCOME_CONFLICT)
    return list(told.values())


def _require_stored(fence: Fence, outcomes: Sequence[CallOutcome]) -> None:
    """Return when the steps have these very outcomes; raise why they do not."""
    steps = WorkStep.objects.filter(job_id=fence.pk).in_bulk(
        [outcome.step_id for outcome in outcomes]
    )
    for outcome in outcomes:
        step = steps.get(outcome.step_id)
        if step is None or step.finished_at is None:
            raise refusal(fence, "the call has not been started")
        outcome.require_stored_in(step)


def start_step(fence: Fence, step_id: int) -> WorkStep:
    """Mark one call as running: see `move_steps`."""
    (started,) = move_steps(fence, starting=[step_id])
    return started


def finish_step(
    fence: Fence,
    step_id: int,
    state: WorkStep.State,
    *,
    result: str = "",
    error_code: ErrorCode | None = None,
) -> WorkStep:
    """Store what came of one call: see `move_steps`. Return its row."""
    outcome = CallOutcome.of(step_id, state, result=result, error_code=error_code)
    move_steps(fence, ended=[outcome])
    return WorkStep.objects.get(pk=step_id, job_id=fence.pk)
