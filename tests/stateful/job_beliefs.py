"""What a machine that delegates jobs believes of them, and what always holds of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from recovery.errors import IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from tests.support.jobs import every_job_row
from turns.models import Conversation, Message
from work import transitions
from work.models import JobReportMessage, WorkJob, WorkProviderStep, WorkStep
from work.transitions import JobAsk

REFUSALS = (StaleFence, IllegalTransition, Refused)
ASK = JobAsk("deep_work", "Find out.")


@dataclass
class Delegated:
    """What the machine believes of a job."""

    pk: int
    key: str
    state: str = "queued"
    generation: int = 0
    attempts: int = 0
    planned: int = 0
    cancel: bool = False
    fence: Fence | None = None
    step: WorkProviderStep | None = None  # the request under way
    requests: int = 0
    report: str = ""
    deadline: datetime | None = None
    calls: dict[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in {"queued", "running"}

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    @property
    def may_start(self) -> bool:
        return self.is_running and not self.cancel

    def open_calls(self) -> list[str]:
        return [name for name, state in self.calls.items() if state in {"requested", "running"}]


class JobBeliefs(RuleBasedStateMachine):
    """A machine's own small idea of its jobs, held against the rows after each event."""

    seen: ClassVar[Counter[str]] = Counter()
    job: Delegated
    runtime: Runtime
    conversation: Conversation
    past: list[Delegated]
    stale: list[Fence]
    started: list[int]
    outcomes: dict[int, str]
    revision: int

    def admitted(self, key: str) -> Delegated:
        admission = transitions.admit_job(
            self.conversation.owner_id, self.conversation.pk, ASK, client_key=key
        )
        assert admission.created
        return Delegated(admission.job.pk, key)

    def refused(self, act: Callable[[], object], *kinds: type[Exception]) -> None:
        before = every_job_row()
        with pytest.raises(kinds or REFUSALS):
            act()
        assert every_job_row() == before

    @property
    def fence(self) -> Fence:
        assert self.job.fence is not None
        return self.job.fence

    def row(self) -> WorkJob:
        return WorkJob.objects.get(pk=self.job.pk)

    # --- what always holds ---

    @invariant()
    def rows_say_what_happened(self) -> None:
        for believed in (*getattr(self, "past", ()), *self.present()):
            job = WorkJob.objects.get(pk=believed.pk)
            assert (job.state, job.generation) == (believed.state, believed.generation)
            assert (job.attempts, job.planned_releases) == (believed.attempts, believed.planned)
            assert job.deadline_at == believed.deadline  # fixed over all adoptions
            calls = WorkStep.objects.filter(job=job).values_list("call_id", "state")
            assert dict(calls) == believed.calls
            assert WorkProviderStep.objects.filter(job=job).count() == believed.requests
            if not believed.is_open:
                self.ended_honestly(job, believed)

    def ended_honestly(self, job: WorkJob, believed: Delegated) -> None:
        """Nothing is open; the conversation says what became of it, once."""
        self.seen[job.state] += 1
        assert not believed.open_calls()
        assert not WorkProviderStep.objects.filter(job=job, state="started").exists()
        shown = JobReportMessage.objects.filter(report__job=job)
        kinds = list(shown.values_list("report__kind", flat=True))
        if job.state == "completed":
            assert kinds == (["result"] if believed.report else [])
        else:
            assert kinds == ["notice"]
        assert job.ended_revision is not None
        assert job.ended_revision <= self.conversation_now().revision

    @invariant()
    def what_waits_is_whole(self) -> None:
        """A queued job has no owner and nothing under way; what it asked for is its own."""
        for believed in self.present():
            if believed.state != "queued":
                continue
            open_steps = WorkStep.objects.filter(job_id=believed.pk, state__in=["running"])
            assert not open_steps.exists()
            requested = WorkStep.objects.filter(job_id=believed.pk, state="requested")
            assert set(requested.values_list("generation", flat=True)) <= {believed.generation}

    @invariant()
    def revisions_never_fall_and_calls_start_once(self) -> None:
        if not hasattr(self, "job"):
            return
        revision = self.conversation_now().revision
        assert revision >= self.revision
        self.revision = revision
        assert len(set(self.started)) == len(self.started)
        for pk, result in self.outcomes.items():
            assert WorkStep.objects.get(pk=pk).result == result
        assert Message.objects.filter(conversation=self.conversation).count() == (
            JobReportMessage.objects.filter(message__conversation=self.conversation).count()
        )

    # --- what the machine notes ---

    def present(self) -> list[Delegated]:
        return [self.job] if hasattr(self, "job") else []

    def conversation_now(self) -> Conversation:
        return Conversation.objects.get(pk=self.conversation.pk)

    def has_open_steps(self) -> bool:
        return self.job.step is not None or bool(self.job.open_calls())

    def release(self) -> None:
        """Note that the job waits for an adopter: what ran is unknown, what waited waits."""
        job = self.job
        self.leave()
        job.state = "queued"
        job.generation += 1
        for name, state in job.calls.items():
            job.calls[name] = "interrupted" if state == "running" else state
        self.seen["released"] += 1

    def end(self, state: str) -> None:
        """Note that the job has ended like this, with all that was open."""
        job = self.job
        self.leave()
        job.state = state
        unstarted = "interrupted" if state == "interrupted" else "cancelled"
        for name, was in job.calls.items():
            job.calls[name] = {"running": "interrupted", "requested": unstarted}.get(was, was)

    def leave(self) -> None:
        if self.job.fence is not None:
            self.stale.append(self.job.fence)
        self.job.step = None

    def is_alive(self) -> bool:
        return Runtime.objects.living().filter(pk=self.runtime.pk).exists()

    def is_orphan(self) -> bool:
        return WorkJob.objects.orphaned().filter(pk=self.job.pk).exists()

    def teardown(self) -> None:
        """Remove what this run made, so that the next one looks at its own rows."""
        with suppress(AttributeError):
            self.conversation.delete()
