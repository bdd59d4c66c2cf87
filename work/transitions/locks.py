"""The first lines of every transition: raise the revision, lock the job, check the fence."""

from __future__ import annotations

from django.db.models import F

from recovery.errors import StaleFence
from recovery.fences import Fence
from turns import events
from turns.models import Conversation
from turns.transitions.locks import CancelRequested
from work.models import WorkJob

__all__ = ["CancelRequested", "lock_job", "lock_owned", "raise_revision_of"]


def raise_revision_of(job_id: int, *, person_id: int | None = None) -> bool:
    """Lock the conversation of a job by raising its revision; False when there is none.

    A job's conversation never changes, so it may be looked up without a lock. With `person_id`
    somebody else's job is none.
    """
    jobs = WorkJob.objects.filter(pk=job_id)
    if person_id is not None:
        jobs = jobs.of_person(person_id)
    conversations = Conversation.objects.filter(pk__in=jobs.values("conversation_id"))
    return conversations.update(revision=F("revision") + 1) == 1


def lock_job(job_id: int) -> WorkJob | None:
    """Return the job, locked against every other writer. Its conversation is locked
    already."""
    return WorkJob.objects.select_for_update(no_key=True).filter(pk=job_id).first()


def lock_owned(fence: Fence, *, starting: bool = False) -> WorkJob:
    """Return the running job of this claim, its conversation and itself locked.

    `starting` is true for what would begin something new: a cancel forbids that.

    Raises:
        StaleFence: the job has ended, is gone, was released or claimed by another.
        CancelRequested: the job is to stop, and this would start something.
    """
    job = lock_job(fence.pk) if raise_revision_of(fence.pk) else None
    if job is None or job.state != WorkJob.State.RUNNING:
        raise StaleFence
    fence.require(job.generation, job.claim_token)
    if starting and job.cancel_requested_at is not None:
        raise CancelRequested
    events.announce_on_commit(job.conversation_id)
    return job
