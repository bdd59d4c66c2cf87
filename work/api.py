"""The JSON API of jobs and of the computers they may work on (mounted under /api/v1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from pydantic import Field, StrictInt, StrictStr

from recovery.errors import ErrorCode, Refused
from recovery.executor import in_thread
from turns.api import (
    ASKED_WRONGLY,
    DEFAULT_PAGE,
    UNKNOWN,
    Asked,
    ClientKey,
    Id,
    Limit,
    person_of,
    pk_of,
)
from turns.ids import parse_id
from turns.schemas import Problem
from work import bounds, projection, transitions
from work.schemas import ComputerShape, JobShape, Kind
from work.transitions import JobAsk

router = Router(tags=["jobs"])


class NewJob(Asked):
    """Work to delegate. `computer_id` and `cwd` say where a coding job works."""

    kind: Kind
    goal: StrictStr = Field(description=f"At most {bounds.GOAL_MAX_BYTES:,} bytes of UTF-8.")
    context: StrictStr = Field(
        default="", description=f"At most {bounds.CONTEXT_MAX_BYTES:,} bytes of UTF-8."
    )
    computer_id: StrictStr | None = None
    agent: Annotated[StrictStr, Field(max_length=bounds.AGENT_MAX_CHARS)] = ""
    cwd: StrictStr = Field(
        default="",
        description="A directory inside the computer's roots; the only root if left out.",
    )
    wall_clock_seconds: StrictInt | None = None
    client_key: ClientKey = None


class JobPage(Schema):
    """Jobs, newest first; `next` is the `before` of the following page."""

    jobs: list[JobShape]
    next: str | None


class Computers(Schema):
    """Where the person's jobs may work."""

    computers: list[ComputerShape]


@router.post(
    "/conversations/{conversation_id}/jobs",
    response={
        200: JobShape,
        202: JobShape,
        **UNKNOWN,
        **ASKED_WRONGLY,
        409: Problem,
        429: Problem,
        503: Problem,
    },
)
async def create_job(request: HttpRequest, conversation_id: Id, body: NewJob) -> Status[Any]:
    """Delegate: 202 with the queued job, or 200 for a repeat of the same `client_key`."""
    ask = JobAsk(
        kind=body.kind,
        goal=body.goal,
        context=body.context,
        computer_id=None if body.computer_id is None else pk_of(body.computer_id),
        agent=body.agent,
        cwd=body.cwd,
        wall_clock_seconds=body.wall_clock_seconds,
    )
    admission = await in_thread(
        transitions.admit_job,
        person_of(request),
        pk_of(conversation_id),
        ask,
        client_key=body.client_key,
    )
    return Status(202 if admission.created else 200, await _job(request, admission.job.pk))


@router.get("/jobs", response={200: JobPage, **UNKNOWN, **ASKED_WRONGLY})
async def list_jobs(
    request: HttpRequest,
    *,
    before: str | None = None,
    after: str | None = None,
    limit: Limit = DEFAULT_PAGE,
    conversation_id: str | None = None,
    state: Annotated[Literal["open"] | None, Query(description="Only what has not ended.")] = (
        None
    ),
) -> JobPage:
    """List the person's jobs, newest first; those of one conversation where it is named.

    With `after`, only those begun later than that job: the newest of them, where they are more
    than a page.
    """
    places = {"before": before, "after": after}
    asked = {name: parse_id(text) for name, text in places.items() if text is not None}
    if None in asked.values():
        raise Refused(ErrorCode.INVALID_REQUEST)
    found = await in_thread(
        projection.jobs,
        person_of(request),
        **asked,
        conversation_id=None if conversation_id is None else pk_of(conversation_id),
        open_only=state == "open",
        limit=limit + 1,
    )
    if found is None:
        raise Refused(ErrorCode.NOT_FOUND)
    shown = found[:limit]
    return JobPage(jobs=shown, next=shown[-1].id if len(found) > limit else None)


@router.get("/jobs/{job_id}", response={200: JobShape, **UNKNOWN})
async def get_job(request: HttpRequest, job_id: Id) -> JobShape:
    """Show a job with its steps as far as they are committed."""
    return await _job(request, pk_of(job_id))


@router.post("/jobs/{job_id}/cancel", response={200: JobShape, 202: JobShape, **UNKNOWN})
async def cancel_job(request: HttpRequest, job_id: Id) -> Status[Any]:
    """Ask a job to stop: 202, or 200 with the end it had reached before."""
    job, accepted = await in_thread(
        transitions.request_cancel, person_of(request), pk_of(job_id)
    )
    return Status(202 if accepted else 200, await _job(request, job.pk))


@router.get("/computers", response={200: Computers})
async def list_computers(request: HttpRequest) -> Computers:
    """List the computers the person's jobs may work on."""
    return Computers(computers=await in_thread(projection.computers, person_of(request)))


async def _job(request: HttpRequest, job_id: int) -> JobShape:
    found = await in_thread(projection.job, job_id, person_of(request))
    if found is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return found
