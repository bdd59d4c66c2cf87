"""What becomes of a job's open steps when it changes hands or ends.

Set-wise, in the transaction that locks and writes the jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django.db import connection

from recovery.arrays import array
from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS, NEXT_MARK_SQL
from work.models import WorkJob, WorkProviderStep, WorkStep

_END_PROVIDER_STEPS: Final = """
    UPDATE work_workproviderstep SET state = %(state)s, error_code = %(code)s,
        finished_at = statement_timestamp()
    WHERE job_id = ANY(%(ids)s::bigint[]) AND state = 'started'
"""
# What never started certainly had no effect; what was running may have had one.
_END_STEPS: Final = f"""
    UPDATE work_workstep SET finished_at = statement_timestamp(),
        state = CASE state WHEN 'running' THEN 'interrupted' ELSE %(requested)s END,
        error_code = CASE state WHEN 'running' THEN 'outcome_unknown' ELSE 'not_started' END,
        write_mark = {NEXT_MARK_SQL}
    WHERE job_id = ANY(%(ids)s::bigint[]) AND state IN ('requested', 'running')
"""  # noqa: S608  constants
# What was not started is the adopter's to start: it moves to the job's present generation. The
# ids are named for both tables: from the join alone the planner read all steps, for each batch.
_HAND_OVER_STEPS: Final = f"""
    UPDATE work_workstep s SET
        state = CASE s.state WHEN 'running' THEN 'interrupted' ELSE s.state END,
        error_code = CASE s.state WHEN 'running' THEN 'outcome_unknown' ELSE '' END,
        finished_at = CASE s.state WHEN 'running' THEN statement_timestamp() END,
        generation = CASE s.state WHEN 'running' THEN s.generation ELSE j.generation END,
        write_mark = CASE s.state
            WHEN 'running' THEN (s.generation::bigint << {GENERATION_SHIFT_BITS})
                | ((s.write_mark + 1) & {(1 << GENERATION_SHIFT_BITS) - 1})
            ELSE j.generation::bigint << {GENERATION_SHIFT_BITS} END
    FROM work_workjob j
    WHERE j.id = ANY(%(ids)s::bigint[]) AND s.job_id = j.id
        AND s.job_id = ANY(%(ids)s::bigint[]) AND s.state IN ('requested', 'running')
"""  # noqa: S608  constants


def end_children(ids: Sequence[int], state: WorkJob.State, code: ErrorCode) -> None:
    """End every open step of jobs that end in `state`."""
    requested = WorkStep.State.CANCELLED
    if state == WorkJob.State.INTERRUPTED:
        requested = WorkStep.State.INTERRUPTED
    with connection.cursor() as cursor:
        cursor.execute(
            _END_PROVIDER_STEPS,
            {"ids": array(ids), "state": provider_step_end(state).value, "code": code.value},
        )
        cursor.execute(_END_STEPS, {"ids": array(ids), "requested": requested.value})


def hand_over_children(ids: Sequence[int], code: ErrorCode) -> None:
    """End what ran under the old generation; leave the adopter what was not started.

    The jobs have their new generation already.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            _END_PROVIDER_STEPS,
            {
                "ids": array(ids),
                "state": WorkProviderStep.State.INTERRUPTED.value,
                "code": code.value,
            },
        )
        cursor.execute(_HAND_OVER_STEPS, {"ids": array(ids)})


def provider_step_end(state: WorkJob.State) -> WorkProviderStep.State:
    """Return how a request that is under way ends with its job."""
    if state == WorkJob.State.BUDGET_EXHAUSTED:
        return WorkProviderStep.State.INTERRUPTED
    return WorkProviderStep.State(state.value)
