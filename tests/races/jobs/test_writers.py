"""All writers of jobs at once, over a few conversations: no deadlock, no open step."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from recovery.errors import BoundExceeded, IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from tests import factories as make
from tests.support.job_transitions import call, complete
from tests.support.rivals import Rival
from turns.models import Conversation, Message, Turn
from turns.transitions import admit_turn, delete_conversation
from turns.transitions import request_cancel as cancel_turn
from work.models import JobReport, JobReportMessage, WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery
from work.transitions import (
    JobAsk,
    admit_job,
    append_report,
    checkpoint_workspace,
    claim_job,
    claim_jobs,
    finish_job,
    finish_jobs,
    finish_step,
    last_provider_step,
    release_own_jobs,
    report_of,
    request_cancel,
    requested_steps,
    start_provider_step,
    start_step,
)

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 80
# In turn for all writers: however their threads fall, each kind comes about.
ENDINGS = itertools.cycle(["complete", "drain", "complete", "fail", "leave"])
EXPECTED = (StaleFence, IllegalTransition, Refused, BoundExceeded)


class Writer:
    """One process: delegates, claims, works, ends; whatever is refused, it goes on."""

    def __init__(self, seed: int, conversations: list[Conversation]) -> None:
        self.random = random.Random(seed)
        self.conversations = conversations
        self.started: Counter[int] = Counter()
        self.did: Counter[str] = Counter()

    def run(self) -> None:
        self.runtime = make.RuntimeFactory.create()
        acts: list[Callable[[Conversation], None]] = [
            *[self.delegate] * 3, *[self.work] * 4, self.work_on_many, self.ask, self.cancel,
            self.die, self.recover, self.recover, self.remove,
        ]  # fmt: skip
        for _ in range(ROUNDS):
            try:
                self.random.choice(acts)(self.random.choice(self.conversations))
            except EXPECTED as refused:
                self.did[type(refused).__name__] += 1

    def delegate(self, conversation: Conversation) -> None:
        admit_job(conversation.owner_id, conversation.pk, JobAsk("deep_work", "Find out."))

    def ask(self, conversation: Conversation) -> None:
        turn = admit_turn(conversation.owner_id, conversation.pk, "Why?").turn
        cancel_turn(conversation.owner_id, turn.pk)

    def recover(self, _conversation: Conversation) -> None:
        WorkRecovery().settle_orphans()

    def cancel(self, conversation: Conversation) -> None:
        job = WorkJob.objects.filter(conversation=conversation).open().first()
        if job is not None:
            request_cancel(conversation.owner_id, job.pk)
            self.did["cancelled"] += 1

    def remove(self, conversation: Conversation) -> None:
        delete_conversation(conversation.owner_id, conversation.pk)
        self.did["removed"] += 1
        # the list is one for all writers, and never empty
        self.conversations[self.conversations.index(conversation)] = (
            make.ConversationFactory.create()
        )

    def die(self, _conversation: Conversation) -> None:
        Runtime.objects.filter(pk=self.runtime.pk).update(
            stopped_at=Now(), stop_reason="runtime_lost"
        )
        self.runtime = make.RuntimeFactory.create()

    def work(self, conversation: Conversation) -> None:
        job = WorkJob.objects.filter(conversation=conversation, state="queued").last()
        fence = claim_job(job.pk, owner=self.runtime.pk) if job else None
        if fence is not None:
            self.did["claimed"] += 1
            self.go_on(fence)

    def work_on_many(self, _conversation: Conversation) -> None:
        fences = claim_jobs(owner=self.runtime.pk, limit=3)
        self.did["claimed"] += len(fences)
        self.did["completed"] += len(finish_jobs(fences, WorkJob.State.COMPLETED))
        release_own_jobs(fences)

    def go_on(self, fence: Fence) -> None:
        for step in requested_steps(fence):
            self.do(fence, step)
        checkpoint_workspace(fence, "c0ffee", f"branch-{fence.pk}")
        last = last_provider_step(fence)
        name = str(last.sequence + 1 if last else 1)
        asked = start_provider_step(fence, make.request_facts())
        calls = [call(f"{name}-{n}") for n in range(self.random.randrange(3))]
        for step in complete(fence, asked, *calls, response_id=name):
            if self.random.random() < 0.7:
                self.do(fence, step)
        match next(ENDINGS):
            case "complete":
                if report_of(fence.pk) is None:
                    append_report(fence, "Found it.")
                finish_job(fence, WorkJob.State.COMPLETED)
                self.did["completed"] += 1
            case "fail":
                finish_job(fence, WorkJob.State.FAILED)
            case "drain":
                release_own_jobs([fence])
                self.did["drained"] += 1

    def do(self, fence: Fence, step: WorkStep) -> None:
        start_step(fence, step.pk)
        self.started[step.pk] += 1
        if self.random.random() < 0.9:
            finish_step(fence, step.pk, WorkStep.State.SUCCEEDED, result="x")


def test_all_writers_at_once_neither_deadlock_nor_start_a_call_twice() -> None:
    """failures H77, H78, for jobs"""
    conversations = make.ConversationFactory.create_batch(3)
    writers = [Writer(seed, conversations) for seed in range(6)]
    for rival in [Rival(writer.run) for writer in writers]:
        error = rival.error(seconds=100)
        assert not isinstance(error, OperationalError), f"a deadlock or a lock timeout: {error}"
        assert error is None

    did: Counter[str] = Counter()
    started: Counter[int] = Counter()
    for writer in writers:
        did.update(writer.did)
        started.update(writer.started)
    assert did["claimed"] > 10
    assert min(did["completed"], did["removed"], did["drained"], did["cancelled"]) > 0
    assert set(started.values()) == {1}

    # what is still open belongs to runtimes that live: let them die, and nobody come
    Runtime.objects.filter(stopped_at=None).update(stopped_at=Now(), stop_reason="runtime_lost")
    WorkRecovery().settle_orphans()
    for job in WorkJob.objects.open():
        request_cancel(job.person_id, job.pk)
    assert not Turn.objects.open().exists()
    for model in (WorkProviderStep, WorkStep):
        open_states = sorted(model.LIFECYCLE.open)
        assert not model._default_manager.filter(state__in=open_states).exists()
    for job in WorkJob.objects.all():
        said = JobReportMessage.objects.filter(report__job=job).count()
        reported = JobReport.objects.filter(job=job).exists()
        assert said == (1 if reported else 0)
        assert reported or job.state == "completed"
    shown = Message.objects.filter(role="assistant", state="complete").count()
    assert shown == JobReportMessage.objects.count()
