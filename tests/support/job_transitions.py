"""A job's life in single moves, as its worker, a dead worker and an adopter make them."""

from __future__ import annotations

from typing import Any

from django.db.models.functions import Now

from recovery.fences import Fence
from recovery.models import Runtime
from recovery.reports import RecoveryReport
from tests.factories import RuntimeFactory, request_facts
from turns.transitions import RequestedCall
from work.models import WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery
from work.transitions import claim_job, complete_provider_step, start_provider_step


def call(call_id: str = "call", **changes: Any) -> RequestedCall:
    """Return a call of a response."""
    asked: dict[str, Any] = {
        "call_id": call_id,
        "item_id": "item",
        "name": "tool",
        "arguments": '{"a": 1}',
    }
    return RequestedCall(**{**asked, **changes})


def complete(
    fence: Fence, step: WorkProviderStep, *calls: RequestedCall, **changes: Any
) -> list[WorkStep]:
    """Let the response to a request say something and ask for `calls`."""
    said: dict[str, Any] = {"response_id": "resp", "usage": {"total": 3}, "text": "Well. "}
    return complete_provider_step(fence, step.pk, calls=calls, **{**said, **changes})


def requested(fence: Fence, *calls: RequestedCall) -> list[WorkStep]:
    """Return the steps of `calls` that a whole request and response led to."""
    step = start_provider_step(fence, request_facts())
    return complete(fence, step, *(calls or (call(),)))


def bury_worker(job: WorkJob) -> None:
    """Let the job's worker be known to be dead."""
    job.refresh_from_db()
    assert job.owner is not None
    Runtime.objects.filter(pk=job.owner, stopped_at=None).update(
        stopped_at=Now(), stop_reason="runtime_lost"
    )


def recover() -> RecoveryReport:
    """Settle the jobs of dead workers, and hint at what waits."""
    return WorkRecovery().settle_orphans()


def adopted(job: WorkJob) -> Fence:
    """Return the fence of who took the job over from its dead worker."""
    bury_worker(job)
    recover()
    fence = claim_job(job.pk, owner=RuntimeFactory.create().pk)
    assert fence is not None
    return fence
