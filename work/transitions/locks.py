"""The first lines of every transition: lock the conversation and the job, check the fence.

A transition that is one statement begins with `OWNED` or `STARTING`. One of several statements
begins with `lock_owned`.
"""

from __future__ import annotations

from typing import Any, Final

from django.db.models import F

from recovery.errors import IllegalTransition, StaleFence
from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK, Fence
from turns import events
from turns.models import Conversation
from turns.transitions.locks import CancelRequested
from work.models import WorkJob

__all__ = [
    "HELD",
    "OWNED",
    "STARTING",
    "CancelRequested",
    "lock_job",
    "lock_owned",
    "next_mark_sql",
    "presented",
    "raise_revision_of",
    "refusal",
]

# The conversation is locked by raising its revision, before it, the job; the latter is read as
# it is then. What else the statement reads is as it was when it began, and nobody's but this
# owner's to change. Where nothing is written after all, `MOVED_SQL` lowers the revision again.
_OWNED: Final = """
    raised AS (
        UPDATE turns_conversation c SET revision = c.revision + 1 FROM work_workjob j
        WHERE j.id = %(job)s AND c.id = j.conversation_id AND {held}
        RETURNING c.id
    ), mine AS MATERIALIZED (
        SELECT j.id, j.conversation_id, j.budget, j.cancel_requested_at
        FROM raised CROSS JOIN work_workjob j WHERE j.id = %(job)s AND {held}
        FOR NO KEY UPDATE OF j
    )
"""
HELD: Final = """
    j.state = 'running' AND j.generation = %(generation)s AND j.claim_token = %(token)s
"""
OWNED: Final = _OWNED.format(held=HELD)
# for what would begin something new: a cancel forbids that
STARTING: Final = _OWNED.format(held=f"{HELD} AND j.cancel_requested_at IS NULL")


def next_mark_sql(row: str) -> str:
    """Return the next mark of `row` under the generation that is presented."""
    return (
        f"(%(generation)s::bigint << {GENERATION_SHIFT_BITS}) "
        f"| (({row}.write_mark + 1) & {WRITE_COUNT_MASK})"
    )


def presented(fence: Fence, **more: Any) -> dict[str, Any]:
    """Return the parameters of a statement that begins with `OWNED` or `STARTING`."""
    return {"job": fence.pk, "generation": fence.generation, "token": fence.token, **more}


def refusal(fence: Fence, why: str, *, starting: bool = False) -> Exception:
    """Return why a statement under `fence` wrote nothing: `why`, if the fence still holds."""
    job = WorkJob.objects.filter(
        pk=fence.pk,
        generation=fence.generation,
        claim_token=fence.token,
        state=WorkJob.State.RUNNING,
    ).first()
    if job is None:
        return StaleFence()
    if starting and job.cancel_requested_at is not None:
        return CancelRequested()
    return IllegalTransition(why)


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


def lock_owned(fence: Fence) -> WorkJob:
    """Return the running job of this claim, its conversation and itself locked.

    Raises:
        StaleFence: the job has ended, is gone, was released or claimed by another.
    """
    job = lock_job(fence.pk) if raise_revision_of(fence.pk) else None
    if job is None or job.state != WorkJob.State.RUNNING:
        raise StaleFence
    fence.require(job.generation, job.claim_token)
    events.announce_on_commit(job.conversation_id)
    return job
