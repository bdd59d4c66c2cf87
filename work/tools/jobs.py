"""`list_jobs`, `job_status` and `cancel_job`: how the person's jobs are, and an end to one."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import Field

from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode, Refused
from turns import ids
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed
from work import projection, transitions
from work.schemas import JobShape

LISTED_MAX: Final = 20
GOAL_TOLD_BYTES: Final = 300
STEPS_TOLD: Final = 10


class ListJobs(Arguments):
    """Nothing to say."""


class OneJob(Arguments):
    """Which job."""

    job_id: Annotated[str, Field(max_length=ids.MAX_CHARS)]


def list_jobs(invocation: Invocation[ListJobs]) -> str:
    """Return the person's newest jobs, as JSON."""
    newest = projection.jobs(invocation.owner_id, limit=LISTED_MAX + 1) or []
    listed = [
        {
            **_told(job),
            "here": job.conversation_id == str(invocation.conversation_id),
        }
        for job in newest[:LISTED_MAX]
    ]
    return _json({"jobs": listed, "truncated": len(newest) > LISTED_MAX})


def job_status(invocation: Invocation[OneJob]) -> str:
    """Return how far a job is, and what it reports once it has ended, as JSON."""
    job = _found(invocation)
    calls = [step for step in job.steps if step.kind == "tool"]
    steps = [
        {"name": step.name, "state": step.state, "error": step.error_code}
        for step in calls[-STEPS_TOLD:]
    ]
    return _json(
        {
            **_told(job),
            "goal": job.goal,
            "attempts": job.attempts,
            "step_count": len(calls),
            "last_steps": steps,
            "report": job.report,
        }
    )


def cancel_job(invocation: Invocation[OneJob]) -> str:
    """Ask the job to stop; return whether it has, as JSON."""
    job_id = ids.parse_id(invocation.arguments.job_id)
    try:
        if job_id is None:
            raise Refused(ErrorCode.NOT_FOUND)
        job, accepted = transitions.request_cancel(invocation.owner_id, job_id)
    except Refused as refused:
        raise ToolFailed(refused.code) from None
    if not accepted:
        return _json({"disposition": "had_ended", "state": job.state})
    has_ended = job.finished_at is not None
    return _json({"disposition": "cancelled" if has_ended else "is_stopping"})


def _found(invocation: Invocation[OneJob]) -> JobShape:
    job_id = ids.parse_id(invocation.arguments.job_id)
    job = None if job_id is None else projection.job(job_id, invocation.owner_id)
    if job is None:
        raise ToolFailed(ErrorCode.NOT_FOUND)
    return job


def _told(job: JobShape) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "kind": job.kind,
        "goal": cut_utf8(job.goal, GOAL_TOLD_BYTES),
        "state": job.state,
        "why": job.error_message,
        "stopping": job.cancel_requested and job.finished_at is None,
        "created_at": job.created_at.isoformat(timespec="seconds"),
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="list_jobs",
        description="List the person's background jobs, newest first, with their states.",
        arguments=ListJobs,
        effect=Effect.READ,
        call=list_jobs,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
    Tool(
        name="job_status",
        description=(
            "Look at one background job by its job_id: how far it is, and its report once it "
            "has ended."
        ),
        arguments=OneJob,
        effect=Effect.READ,
        call=job_status,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
    Tool(
        name="cancel_job",
        description=(
            "Ask one background job to stop, by its job_id. What it has done stays done. "
            "Use it only when the person asks for it."
        ),
        arguments=OneJob,
        effect=Effect.REVERSIBLE,
        call=cancel_job,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
)
