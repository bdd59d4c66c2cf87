"""What the rivals do: each a transition with its arguments, to be called on its own session.

In each race the first is held up with the conversation locked, at the job or at what follows
it. The second waits for the conversation: what it looked up by then is old when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from recovery.fences import Fence
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.factories import fence_of
from tests.support.rivals import Gate
from work.models import WorkJob
from work.recovery import WorkRecovery
from work.transitions import claim_job, claim_jobs, finish_job, request_cancel

GateOn = Callable[[str, WorkJob], AbstractContextManager[Gate]]


def recover() -> RecoveryReport:
    return WorkRecovery().settle_orphans()


def cancelling(job: WorkJob) -> Callable[[], tuple[WorkJob, bool]]:
    return lambda: request_cancel(job.person_id, job.pk)


def finishing(job: WorkJob) -> Callable[[], WorkJob]:
    fence = fence_of(job)
    return lambda: finish_job(fence, WorkJob.State.COMPLETED)


def claiming(job: WorkJob) -> Callable[[], Fence | None]:
    owner = make.RuntimeFactory.create().pk
    return lambda: claim_job(job.pk, owner=owner)


def claiming_some(limit: int = 10) -> Callable[[], list[Fence]]:
    owner = make.RuntimeFactory.create().pk
    return lambda: claim_jobs(owner=owner, limit=limit)
