"""Jobs as a person and an operator see them: delegated, awaited, and looked at whole."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

import pgtrigger
from django.db.models.functions import Now

from recovery.fences import marked_by_row
from tests.factories import ConversationFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import tool_calls
from tests.support.rows import Rows, rows_of
from tests.support.waiting import wait_until
from tests.support.worker import Worker
from turns.models import Conversation, Message
from work.models import Computer, JobReport, WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery
from work.transitions import JobAsk, admit_job

# What a job has in JSON.
JOB_SHAPE: Final = {
    "id", "conversation_id", "kind", "goal", "state", "error_code", "error_message",
    "cancel_requested", "generation", "attempts", "report", "message_id", "branch", "commit",
    "steps", "usage", "created_at", "finished_at", "context", "computer_id", "agent", "cwd",
    "wall_clock_seconds",
}  # fmt: skip
# The two calls of a coding job that adds the file and commits it.
WRITE: Final = ("call_1", "write_file", json.dumps({"path": "b.txt", "text": "two\n"}))
COMMIT: Final = ("call_2", "commit", json.dumps({"message": "Add b"}))

TABLES: Final = (
    "turns_conversation",
    "turns_message",
    "work_workjob",
    "work_workproviderstep",
    "work_workstep",
    "work_jobreport",
    "work_jobreportmessage",
    "recovery_recoveryevent",
    "recovery_recoveryfailure",
)


def place_for(sink: Simulator) -> Conversation:
    """Return the conversation of a person who allows the sink as a webhook."""
    conversation = ConversationFactory.create()
    WebhookAddressFactory.create(owner=conversation.owner, url=f"{sink.url}/hook")
    return conversation


def delegate(
    conversation: Conversation, goal: str = "Find out.", *, kind: str = "deep_work", **ask: Any
) -> WorkJob:
    """Return the job that a person delegates."""
    return admit_job(conversation.owner_id, conversation.pk, JobAsk(kind, goal, **ask)).job


def coding_job(computer: Computer) -> WorkJob:
    """Return a coding job on the computer, to add a file b.txt."""
    conversation = ConversationFactory.create(owner=computer.person)
    return delegate(conversation, "Add b.", kind="coding", computer_id=computer.pk)


def post_call(sink: Simulator, call_id: str = "call_1", n: int = 1) -> tuple[str, str, str]:
    """Return a call that posts to the sink."""
    arguments = {"url": f"{sink.url}/hook", "body": json.dumps({"n": n})}
    return call_id, "webhook_post", json.dumps(arguments)


def posting(sink: Simulator, n: int = 1, *, text: str = "Posting. ", **options: Any) -> Reply:
    """Return a response that asks for the n-th post, as the n-th response of the job."""
    return tool_calls(
        post_call(sink, f"call_{n}", n), text=text, response_id=f"resp_{n}", **options
    )


def held_in_its_call(worker: Worker, sink: Simulator) -> WorkJob:
    """Return a job that the worker has, whose call has reached the sink and is held there."""
    sink.script(Reply(hold_head="answer"))
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    sink.wait_for_gate("answer")
    return job


def wait_until_job(job: WorkJob, *states: str, seconds: float = 60.0) -> WorkJob:
    """Return the job once it is in one of the states; without any, once it has ended."""
    wanted = states or tuple(sorted(WorkJob.LIFECYCLE.terminal))
    wait_until(
        lambda: WorkJob.objects.filter(pk=job.pk, state__in=wanted).exists(),
        f"job {job.pk} {' or '.join(wanted)}",
        seconds=seconds,
    )
    job.refresh_from_db()
    return job


def pass_queue_deadline(job: WorkJob) -> None:
    """Let the time in which somebody had to claim the job be over."""
    late = Now() - timedelta(seconds=1)
    with pgtrigger.ignore("work.WorkJob:queue_deadline_is_fixed"):
        WorkJob.objects.filter(pk=job.pk).update(
            queue_deadline_at=late, write_mark=marked_by_row()
        )


def calls_of(job: WorkJob) -> list[tuple[str, str]]:
    """Return state and code of the job's calls, in order."""
    steps = WorkStep.objects.filter(job=job).order_by("sequence")
    return [(step.state, step.error_code) for step in steps]


def requests_of(job: WorkJob) -> list[str]:
    """Return the states of the job's provider steps, in order."""
    steps = WorkProviderStep.objects.filter(job=job).order_by("sequence")
    return [step.state for step in steps]


def shown(job: WorkJob) -> list[str]:
    """Return the texts of the conversation's messages, in order."""
    messages = Message.objects.filter(conversation_id=job.conversation_id).order_by("pk")
    return list(messages.values_list("text", flat=True))


def report_text(job: WorkJob) -> str:
    """Return what the job's one message says."""
    report = JobReport.objects.get(job=job, shown_by__isnull=False)
    message = Message.objects.get(pk=report.shown_by.message_id)
    assert (message.role, message.state, message.text) == ("assistant", "complete", report.text)
    return report.text


def every_job_row() -> Rows:
    """Return each row of jobs and of what they say: see `rows_of`."""
    return rows_of(TABLES)


def recover_again() -> Rows:
    """Fail if another recovery changes anything; return every row of jobs."""
    before = every_job_row()
    assert WorkRecovery().run().changed_count == 0
    assert every_job_row() == before
    return before


def require_job_terminal(job: WorkJob) -> None:
    """Fail unless the job and all it consists of has ended, and its end is told."""
    job.refresh_from_db()
    assert job.state in WorkJob.LIFECYCLE.terminal
    assert job.finished_at is not None
    assert job.ended_revision is not None
    for model in (WorkProviderStep, WorkStep):
        for row in model._default_manager.filter(job_id=job.pk):
            assert row.state in model.LIFECYCLE.terminal, row
            assert row.finished_at is not None
    assert report_text(job)
