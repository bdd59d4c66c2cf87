"""Every write to a job. Each function is one transaction of its own.

All of them lock in one order: the person (admission alone), the conversation, the job, its
children. A refused transition leaves nothing behind, the conversation's revision included.

What an owner does presents its `Fence`; `StaleFence` means that another claim, a release, or
the end of the job has overtaken it: nothing was written, and it stops.
"""

from work.transitions.admission import Admission, JobAsk, admit_job
from work.transitions.cancelling import request_cancel
from work.transitions.checkpoints import checkpoint_session, checkpoint_workspace
from work.transitions.claims import claim_job, claim_jobs
from work.transitions.endings import finish_job, finish_jobs
from work.transitions.locks import CancelRequested
from work.transitions.provider_steps import complete_provider_step, start_provider_step
from work.transitions.releasing import release_own_jobs
from work.transitions.reports import append_report
from work.transitions.rereading import (
    claim_under,
    claims_of,
    last_provider_step,
    provider_step_at,
    report_of,
    requested_steps,
    running_steps,
    steps_of,
)
from work.transitions.steps import finish_step, move_steps, start_step

__all__ = [
    "Admission",
    "CancelRequested",
    "JobAsk",
    "admit_job",
    "append_report",
    "checkpoint_session",
    "checkpoint_workspace",
    "claim_job",
    "claim_jobs",
    "claim_under",
    "claims_of",
    "complete_provider_step",
    "finish_job",
    "finish_jobs",
    "finish_step",
    "last_provider_step",
    "move_steps",
    "provider_step_at",
    "release_own_jobs",
    "report_of",
    "request_cancel",
    "requested_steps",
    "running_steps",
    "start_provider_step",
    "start_step",
    "steps_of",
]
