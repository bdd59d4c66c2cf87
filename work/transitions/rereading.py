"""What a writer asks on a new connection when the old one was lost during a commit, and what an
adopter asks before it goes on.

A commit either happened or did not; the rows tell. An effect whose "started" row is not found
here is never executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from recovery.fences import Fence
from work.models import JobReport, WorkJob, WorkProviderStep, WorkStep


def claim_under(token: UUID) -> Fence | None:
    """Return the fence when the claim under `token` was committed and still holds.

    Looks among running jobs alone, which are few and indexed.
    """
    job = WorkJob.objects.filter(claim_token=token, state=WorkJob.State.RUNNING).first()
    return Fence(job.pk, job.generation, token) if job else None


def claims_of(owner: UUID) -> list[Fence]:
    """Return the fences of every job that the runtime `owner` runs, by id."""
    jobs = WorkJob.objects.running_in(owner).order_by("pk")
    return [
        Fence(pk, generation, token)
        for pk, generation, token in jobs.values_list("pk", "generation", "claim_token")
        if token is not None
    ]


def provider_step_at(fence: Fence, sequence: int) -> WorkProviderStep | None:
    """Return this claim's provider step number `sequence`, if it was committed and is open.

    One that was closed meanwhile must not be sent; nor one of an earlier generation.
    """
    return WorkProviderStep.objects.filter(
        job_id=fence.pk,
        generation=fence.generation,
        sequence=sequence,
        state=WorkProviderStep.State.STARTED,
    ).first()


def last_provider_step(fence: Fence) -> WorkProviderStep | None:
    """Return the job's newest provider step, of whatever generation: where it stands."""
    return WorkProviderStep.objects.filter(job_id=fence.pk).order_by("-sequence").first()


def steps_of(fence: Fence, provider_step_id: int) -> list[WorkStep]:
    """Return the calls a provider step asked for, in order, as they are now."""
    steps = WorkStep.objects.filter(job_id=fence.pk, provider_step_id=provider_step_id)
    return list(steps.order_by("sequence"))


def requested_steps(fence: Fence) -> list[WorkStep]:
    """Return the calls that wait to be started under this claim, in order."""
    steps = WorkStep.objects.filter(
        job_id=fence.pk, generation=fence.generation, state=WorkStep.State.REQUESTED
    )
    return list(steps.order_by("sequence"))


def running_steps(fence: Fence, step_ids: Sequence[int]) -> list[WorkStep]:
    """Return those of this claim's calls that were marked as running, in order."""
    steps = WorkStep.objects.filter(
        pk__in=step_ids,
        job_id=fence.pk,
        generation=fence.generation,
        state=WorkStep.State.RUNNING,
    )
    return list(steps.order_by("sequence"))


def report_of(job_id: int) -> JobReport | None:
    """Return the worker's own report, once it is written."""
    return JobReport.objects.filter(job_id=job_id, kind=JobReport.Kind.RESULT).first()
