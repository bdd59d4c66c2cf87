"""What happened to a job, in order, over all its generations. No content, no provider ids.

A job's row knows its first claim and its newest; whose the generations between were, the events
of recovery tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from recovery.timeline import Moment, at, in_order, of_recovery
from turns.timeline import of_provider_steps, of_tool_steps
from work.lifecycles import KIND
from work.models import WorkJob


def timeline(job: WorkJob) -> list[Moment]:
    """Return the moments of a job, oldest first, and what is known of it without a time."""
    return in_order(_moments(job))


def _moments(job: WorkJob) -> Iterator[Moment]:
    yield from at(job.created_at, "admitted")
    yield from _of_claims(job)
    yield from of_provider_steps(job.provider_steps.order_by("sequence"), generations=True)
    yield from of_tool_steps(job.steps.order_by("sequence"), generations=True)
    for report in job.reports.order_by("pk"):
        yield from at(
            report.created_at,
            f"{report.kind} written, generation {report.generation}, {report.byte_count} bytes",
        )
    yield from at(job.cancel_requested_at, "cancel requested")
    yield from of_recovery(KIND, job.pk)
    yield from at(job.finished_at, f"job {job.state}", job.error_code)
    yield from _without_time(job)


def _of_claims(job: WorkJob) -> Iterator[Moment]:
    if job.attempts > 1 and job.deadline_at is not None:
        first = job.deadline_at - timedelta(seconds=job.wall_clock_seconds)
        yield from at(first, "claimed first, generation 1")
    # released again, the newest claim was of the generation before
    claimed = job.generation if job.owner is not None else job.generation - 1
    by = f" by {job.owner}" if job.owner is not None else ""
    yield from at(job.claimed_at, f"claimed{by}, generation {claimed}, attempt {job.attempts}")


def _without_time(job: WorkJob) -> Iterator[Moment]:
    if job.base_commit:
        yield Moment(None, f"worktree of branch {job.branch}, from commit {job.base_commit}")
    if job.acp_session_id:
        yield Moment(None, f"external session kept, read up to {job.acp_cursor}")
