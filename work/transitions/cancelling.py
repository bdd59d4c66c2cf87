"""A person asks for a job to stop."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from recovery.fences import marked_by_row
from turns import events
from turns.models import Conversation
from work.models import WorkJob
from work.transitions.endings import End, end_jobs
from work.transitions.locks import lock_job, raise_revision_of


@transaction.atomic(durable=True)
def request_cancel(person_id: int, job_id: int) -> tuple[WorkJob, bool]:
    """Return the job, and whether it is stopping or stopped by this: False had it ended before.

    A job that nobody alive works on ends at once, with everything it consists of. Otherwise
    the request is durable: from here on nothing new starts and any finish becomes `cancelled`.

    Raises:
        Refused: `not_found` for an unknown or foreign job.
    """
    if not raise_revision_of(job_id, person_id=person_id):
        raise Refused(ErrorCode.NOT_FOUND)
    job = lock_job(job_id)
    if job is None:
        raise Refused(ErrorCode.NOT_FOUND)
    if job.state in WorkJob.LIFECYCLE.terminal:
        transaction.set_rollback(True)
        return job, False
    mine = WorkJob.objects.filter(pk=job_id)
    if job.cancel_requested_at is None:
        mine.update(cancel_requested_at=Now(), write_mark=marked_by_row())
    # Asked again under the lock: a queued job has no owner, a dead one's is buried.
    if job.state == WorkJob.State.QUEUED or mine.orphaned().exists():
        revision = Conversation.objects.values_list("revision", flat=True)
        end_jobs(
            [End(job_id, WorkJob.State.CANCELLED, ErrorCode.CANCELLED)],
            revisions={job.conversation_id: revision.get(pk=job.conversation_id)},
        )
    job.refresh_from_db()
    events.announce_on_commit(job.conversation_id)
    return job, True
