"""Jobs, where they work, and their children."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Generic

import factory
import pgtrigger

from recovery.fences import claimed_mark
from tests.factories.recovery import ClaimableFactory, UserFactory
from tests.factories.rows import M, Now_, RowFactory, Trait, after, ending
from tests.factories.steps import AskingFactory, CallingFactory
from tests.factories.turns import ConversationFactory, MessageFactory
from turns.digests import digest
from work.bounds import QUEUE_DEADLINE_SECONDS
from work.limits import JobLimits
from work.models import (
    Computer,
    JobReport,
    JobReportMessage,
    WorkJob,
    WorkProviderStep,
    WorkStep,
)


class ComputerFactory(RowFactory[Computer]):
    """A computer on the machine of `RuntimeFactory`."""

    class Meta:
        model = Computer

    class Params:
        revoked = Trait(revoked_at=Now_)

    person = factory.SubFactory(UserFactory)
    name = factory.Sequence("laptop {}".format)
    host_id = "test-host"
    roots = ["/srv/projects"]
    checks = {"tests": ["script/test"]}


def _authority(job: Any) -> dict[str, Any]:
    computer: Computer | None = job.computer
    if computer is None:
        return {"agent": job.agent}
    return {
        "computer_id": computer.pk,
        "name": computer.name,
        "host_id": computer.host_id,
        "roots": computer.roots,
        "tier": computer.tier,
        "checks": computer.checks,
        "cwd": job.cwd,
        "agent": job.agent,
    }


class WorkJobFactory(ClaimableFactory[WorkJob]):
    """A queued deep-work job of its own person and conversation."""

    class Meta:
        model = WorkJob

    class Params:
        # given up by a dead worker, and waiting for another
        released = Trait(
            generation=2,
            write_mark=claimed_mark(2),
            attempts=1,
            claimed_at=Now_,
            deadline_at=after(minutes=10),
            queue_deadline_at=after(minutes=5),
        )
        completed = Trait(state="completed", finished_at=Now_)
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "adoption_attempts_exhausted")
        budget_exhausted = ending("budget_exhausted", "budget_exhausted")
        coding = Trait(
            kind="coding",
            computer=factory.SubFactory(
                ComputerFactory, person=factory.SelfAttribute("..person")
            ),
            host_id=factory.SelfAttribute("computer.host_id"),
            cwd=factory.LazyAttribute(lambda job: job.computer.roots[0]),
        )

    person = factory.SubFactory(UserFactory)
    conversation = factory.SubFactory(
        ConversationFactory, owner=factory.SelfAttribute("..person")
    )
    kind = "deep_work"
    goal = "Find out."
    prompt = factory.SelfAttribute("goal")
    computer = None
    agent = ""
    cwd = ""
    host_id = ""
    model = "scripted"
    wall_clock_seconds = 600
    authority = factory.LazyAttribute(_authority)
    budget = factory.LazyAttribute(lambda job: JobLimits(job.wall_clock_seconds).snapshot())
    before_message_id = 1
    request_digest = digest("a request")
    queue_deadline_at = after(seconds=QUEUE_DEADLINE_SECONDS)
    next_dispatch_at = after(seconds=5)

    @classmethod
    def _create(cls, model_class: type[WorkJob], *args: Any, **kwargs: Any) -> WorkJob:
        # a trait says what became of the job since it was queued
        became = {"state", "generation", "attempts", "dispatch_count", "deadline_at"}
        is_new = became.isdisjoint(kwargs)
        ignored = nullcontext() if is_new else pgtrigger.ignore("work.WorkJob:begins_queued")
        with ignored:
            return super()._create(model_class, *args, **kwargs)


class WorkChildFactory(RowFactory[M], Generic[M]):
    """A child carries its job's generation."""

    class Meta:
        abstract = True

    job = factory.SubFactory(WorkJobFactory, running=True)
    generation = factory.SelfAttribute("job.generation")


class WorkProviderStepFactory(
    WorkChildFactory[WorkProviderStep], AskingFactory[WorkProviderStep]
):
    class Meta:
        model = WorkProviderStep

    sequence = factory.LazyAttribute(lambda step: step.job.provider_steps.count() + 1)


class WorkStepFactory(WorkChildFactory[WorkStep], CallingFactory[WorkStep]):
    class Meta:
        model = WorkStep

    class Params:
        refused = ending("refused", "path_refused")

    provider_step = factory.SubFactory(
        WorkProviderStepFactory, completed=True, job=factory.SelfAttribute("..job")
    )
    write_mark = factory.LazyAttribute(lambda step: claimed_mark(step.generation))
    sequence = factory.LazyAttribute(lambda step: step.job.steps.count() + 1)


class JobReportFactory(WorkChildFactory[JobReport]):
    class Meta:
        model = JobReport

    class Params:
        notice = Trait(kind="notice", text="This job was interrupted.")

    kind = "result"
    text = "Found it."
    byte_count = factory.LazyAttribute(lambda report: len(report.text.encode()))
    digest = factory.LazyAttribute(lambda report: digest(report.text))


class JobReportMessageFactory(RowFactory[JobReportMessage]):
    """The message that shows a report."""

    class Meta:
        model = JobReportMessage

    report = factory.SubFactory(JobReportFactory)
    message = factory.SubFactory(
        MessageFactory,
        answered=True,
        conversation=factory.SelfAttribute("..report.job.conversation"),
        text=factory.SelfAttribute("..report.text"),
    )
