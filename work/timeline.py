"""What happened to a job, in order, over all its generations. No content, no provider ids.

A job's row knows its newest claim alone; the events that ended the others tell of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from recovery.counting import counted
from recovery.timeline import Moment, at, in_order, of_recovery
from turns.timeline import of_provider_steps, of_tool_steps
from work.lifecycles import KIND
from work.models import WorkJob


def timeline(job: WorkJob) -> list[Moment]:
    """Return the moments of a job, oldest first, and what is known of it without a time."""
    return in_order(_moments(job))


def _moments(job: WorkJob) -> Iterator[Moment]:
    yield from at(job.created_at, "admitted")
    if job.owner is not None:
        yield from at(job.claimed_at, f"claimed by {job.owner}, generation {job.generation}")
    yield from of_provider_steps(job.provider_steps.order_by("sequence"), generations=True)
    yield from of_tool_steps(job.steps.order_by("sequence"), generations=True)
    for report in job.reports.order_by("pk"):
        yield from at(
            report.created_at,
            f"{report.kind} written, generation {report.generation}, "
            f"{counted(report.byte_count, 'byte')}",
        )
    yield from at(job.cancel_requested_at, "cancel requested")
    yield from of_recovery(KIND, job.pk)
    yield from at(job.finished_at, f"job {job.state}", job.error_code)
    yield from _without_time(job)


def _without_time(job: WorkJob) -> Iterator[Moment]:
    if job.base_commit:
        yield Moment(None, f"worktree of branch {job.branch}, from commit {job.base_commit}")
    if job.acp_session_id:
        yield Moment(None, f"external session kept, read up to {job.acp_cursor}")
