"""Rows the constraints accept: one factory for each model, one trait for each state.

A trait fills what its state needs: `TurnFactory.create(running=True)` has a living owner, a
claim and a wall clock. Children can only be born under a running turn, so `asked=True` gives it
the receipt and the provider step of a request that is under way.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Generic, TypeVar

import factory
import numpy as np
import pgtrigger
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import F, Max, Model
from django.db.models.functions import Now
from factory.django import DjangoModelFactory

from recovery.errors import ErrorCode
from recovery.fences import Fence, claimed_mark
from recovery.models import Runtime
from semantic import transitions as semantic_transitions
from semantic.embedders.embedder import Identity
from semantic.models import (
    Embedding,
    Manifest,
    MessageWords,
    SemanticJob,
    SemanticReceipt,
)
from semantic.transitions import Claim, Derived
from turns import bounds
from turns.digests import digest
from turns.limits import Limits
from turns.models import (
    ApiToken,
    Conversation,
    Message,
    Note,
    ProviderStep,
    Receipt,
    TextChunk,
    ToolStep,
    Turn,
    WebhookAddress,
)
from turns.transitions import RequestFacts
from work.bounds import QUEUE_DEADLINE_SECONDS as JOB_QUEUE_DEADLINE_SECONDS
from work.limits import JobLimits
from work.models import (
    Computer,
    JobReport,
    JobReportMessage,
    WorkJob,
    WorkProviderStep,
    WorkStep,
)

M = TypeVar("M", bound=Model)

Trait = factory.Trait
Now_ = factory.LazyFunction(Now)


def ending(state: str, code: str = "") -> Any:
    """Return the trait of an end: its state, its time, its code."""
    return Trait(state=state, finished_at=Now_, error_code=code)


class RowFactory(DjangoModelFactory[M], Generic[M]):
    """Creates the row and reads it back, so that the database's times are values."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[M], *args: Any, **kwargs: Any) -> M:
        row: M = super()._create(model_class, *args, **kwargs)
        row.refresh_from_db()
        return row


class UserFactory(RowFactory[User]):
    class Meta:
        model = get_user_model()

    username = factory.Sequence(lambda n: f"person-{n}-{uuid.uuid4().hex[:6]}")


class RuntimeFactory(RowFactory[Runtime]):
    """A living runtime that only its lease, an hour, speaks for."""

    class Meta:
        model = Runtime

    class Params:
        stopped = Trait(stopped_at=Now_, stop_reason="runtime_stopped")
        lost = Trait(stopped_at=Now_, stop_reason="runtime_lost")
        expired = Trait(stopped_at=Now_, stop_reason="lease_expired")

    role = "worker"
    host_id = "test-host"
    host = "test"
    pid = 1
    boot_id = "test-boot"
    lease_expires_at = factory.LazyFunction(lambda: Now() + timedelta(hours=1))


class ConversationFactory(RowFactory[Conversation]):
    class Meta:
        model = Conversation

    owner = factory.SubFactory(UserFactory)


class MessageFactory(RowFactory[Message]):
    """What a person said; `assistant=True` streams an answer, `answered=True` is one."""

    class Meta:
        model = Message

    class Params:
        assistant = Trait(
            role="assistant", state="streaming", text="", digest="", finished_at=None
        )
        answered = Trait(role="assistant", text="An answer.")

    conversation = factory.SubFactory(ConversationFactory)
    role = "user"
    state = "complete"
    text = "A question."
    digest = factory.LazyAttribute(lambda message: digest(message.text))
    finished_at = Now_


def _owner(turn: Any) -> uuid.UUID:
    runtime: Runtime = turn.runtime or RuntimeFactory.create(lost=turn.lost)
    return runtime.pk


def _ask(turn: Turn, _create: bool, wanted: bool | None, **_: Any) -> None:
    if wanted:
        ReceiptFactory.create(turn=turn)
        ProviderStepFactory.create(turn=turn)


class TurnFactory(RowFactory[Turn]):
    """A queued turn of its own person and conversation."""

    class Meta:
        model = Turn
        skip_postgeneration_save = True

    class Params:
        runtime = None
        lost = False
        running = Trait(
            state="running",
            owner=factory.LazyAttribute(_owner),
            generation=1,
            claim_token=factory.LazyFunction(uuid.uuid4),
            write_mark=claimed_mark(1),
            attempts=1,
            claimed_at=Now_,
            deadline_at=factory.LazyFunction(lambda: Now() + timedelta(minutes=10)),
        )
        orphaned = Trait(running=True, lost=True)
        cancel_requested = Trait(running=True, cancel_requested_at=Now_)
        overdue = Trait(
            running=True, deadline_at=factory.LazyFunction(lambda: Now() - timedelta(minutes=1))
        )
        completed = Trait(state="completed", finished_at=Now_)
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    conversation = factory.SubFactory(ConversationFactory)
    user_message = factory.SubFactory(
        MessageFactory, conversation=factory.SelfAttribute("..conversation")
    )
    assistant_message = factory.SubFactory(
        MessageFactory, assistant=True, conversation=factory.SelfAttribute("..conversation")
    )
    request_digest = factory.LazyAttribute(lambda turn: turn.user_message.digest)
    model = "scripted"
    limits = factory.LazyFunction(lambda: Limits().snapshot())
    queue_deadline_at = factory.LazyFunction(
        lambda: Now() + timedelta(seconds=bounds.QUEUE_DEADLINE_SECONDS)
    )
    next_dispatch_at = factory.LazyFunction(lambda: Now() + timedelta(seconds=5))

    # a running turn's receipt and its first provider step
    asked = factory.PostGeneration(_ask)


class ChildFactory(RowFactory[M], Generic[M]):
    """A child carries its turn's generation."""

    class Meta:
        abstract = True

    turn = factory.SubFactory(TurnFactory, running=True)
    generation = factory.SelfAttribute("turn.generation")


class ReceiptFactory(ChildFactory[Receipt]):
    class Meta:
        model = Receipt

    class Params:
        completed = ending("completed")
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    provider_api = "responses"
    model = "scripted"
    instructions_digest = digest("")
    input_digest = digest("")
    tools_digest = digest("")
    message_count = 1
    byte_count = 1


class ProviderStepFactory(ChildFactory[ProviderStep]):
    class Meta:
        model = ProviderStep

    class Params:
        completed = ending("completed")
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    sequence = 1
    model = "scripted"
    request_digest = digest("")
    request_bytes = 1


class ToolStepFactory(ChildFactory[ToolStep]):
    """A requested call of a completed provider step."""

    class Meta:
        model = ToolStep

    class Params:
        running = Trait(state="running", started_at=Now_)
        succeeded = Trait(
            state="succeeded", started_at=Now_, finished_at=Now_, result="found", result_bytes=5
        )
        failed = ending("failed", "tool_failed")
        refused = ending("refused", "address_not_allowed")
        cancelled = ending("cancelled", "cancelled")
        unavailable = ending("unavailable", "unknown_tool")
        interrupted = ending("interrupted", "outcome_unknown")
        external = Trait(effect="external", name="webhook_post")

    provider_step = factory.SubFactory(
        ProviderStepFactory, completed=True, turn=factory.SelfAttribute("..turn")
    )
    sequence = factory.LazyAttribute(lambda step: step.turn.tool_steps.count() + 1)
    call_id = factory.Sequence(lambda n: f"call-{n}")
    item_id = factory.Sequence(lambda n: f"item-{n}")
    name = "search_history"
    arguments = '{"query": "x"}'
    arguments_digest = digest('{"query":"x"}')
    invocation_key = factory.LazyFunction(uuid.uuid4)


class TextChunkFactory(ChildFactory[TextChunk]):
    class Meta:
        model = TextChunk

    seq = factory.LazyAttribute(lambda chunk: chunk.turn.chunks.count() + 1)
    text = "Some text. "


class ApiTokenFactory(RowFactory[ApiToken]):
    class Meta:
        model = ApiToken

    class Params:
        revoked = Trait(revoked_at=Now_)

    user = factory.SubFactory(UserFactory)
    digest = factory.LazyFunction(lambda: digest(uuid.uuid4().hex))


class WebhookAddressFactory(RowFactory[WebhookAddress]):
    class Meta:
        model = WebhookAddress

    owner = factory.SubFactory(UserFactory)
    url = factory.Sequence(lambda n: f"https://example.test/hook/{n}")


class NoteFactory(RowFactory[Note]):
    class Meta:
        model = Note

    owner = factory.SubFactory(UserFactory)
    text = factory.Sequence("Remember {}.".format)
    invocation_key = factory.LazyFunction(uuid.uuid4)


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


class WorkJobFactory(RowFactory[WorkJob]):
    """A queued deep-work job of its own person and conversation."""

    class Meta:
        model = WorkJob

    class Params:
        runtime = None
        lost = False
        running = Trait(
            state="running",
            owner=factory.LazyAttribute(_owner),
            generation=1,
            claim_token=factory.LazyFunction(uuid.uuid4),
            write_mark=factory.LazyAttribute(lambda job: claimed_mark(job.generation)),
            attempts=1,
            claimed_at=Now_,
            deadline_at=factory.LazyFunction(lambda: Now() + timedelta(minutes=10)),
        )
        orphaned = Trait(running=True, lost=True)
        # given up by a dead worker, and waiting for another
        released = Trait(
            generation=2,
            write_mark=claimed_mark(2),
            attempts=1,
            claimed_at=Now_,
            deadline_at=factory.LazyFunction(lambda: Now() + timedelta(minutes=10)),
            queue_deadline_at=factory.LazyFunction(lambda: Now() + timedelta(minutes=5)),
        )
        cancel_requested = Trait(running=True, cancel_requested_at=Now_)
        overdue = Trait(
            running=True, deadline_at=factory.LazyFunction(lambda: Now() - timedelta(minutes=1))
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
    queue_deadline_at = factory.LazyFunction(
        lambda: Now() + timedelta(seconds=JOB_QUEUE_DEADLINE_SECONDS)
    )
    next_dispatch_at = factory.LazyFunction(lambda: Now() + timedelta(seconds=5))


class WorkChildFactory(RowFactory[M], Generic[M]):
    """A child carries its job's generation."""

    class Meta:
        abstract = True

    job = factory.SubFactory(WorkJobFactory, running=True)
    generation = factory.SelfAttribute("job.generation")


class WorkProviderStepFactory(WorkChildFactory[WorkProviderStep]):
    class Meta:
        model = WorkProviderStep

    class Params:
        completed = ending("completed")
        failed = ending("failed", "provider_unavailable")
        cancelled = ending("cancelled", "cancelled")
        interrupted = ending("interrupted", "runtime_lost")

    sequence = factory.LazyAttribute(lambda step: step.job.provider_steps.count() + 1)
    model = "scripted"
    request_digest = digest("")
    request_bytes = 1


class WorkStepFactory(WorkChildFactory[WorkStep]):
    """A requested call of a completed provider step."""

    class Meta:
        model = WorkStep

    class Params:
        running = Trait(state="running", started_at=Now_)
        succeeded = Trait(
            state="succeeded", started_at=Now_, finished_at=Now_, result="found", result_bytes=5
        )
        failed = ending("failed", "tool_failed")
        refused = ending("refused", "path_refused")
        cancelled = ending("cancelled", "cancelled")
        unavailable = ending("unavailable", "unknown_tool")
        interrupted = ending("interrupted", "outcome_unknown")

    provider_step = factory.SubFactory(
        WorkProviderStepFactory, completed=True, job=factory.SelfAttribute("..job")
    )
    write_mark = factory.LazyAttribute(lambda step: claimed_mark(step.generation))
    sequence = factory.LazyAttribute(lambda step: step.job.steps.count() + 1)
    call_id = factory.Sequence(lambda n: f"call-{n}")
    item_id = factory.Sequence(lambda n: f"item-{n}")
    name = "search_history"
    arguments = '{"query": "x"}'
    arguments_digest = digest('{"query":"x"}')
    invocation_key = factory.LazyFunction(uuid.uuid4)


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


class ManifestFactory(RowFactory[Manifest]):
    """A manifest that is being built; what it replaces is retired first."""

    class Meta:
        model = Manifest

    class Params:
        active = Trait(state="active")
        retired = Trait(state="retired")

    state = "building"
    generation = factory.LazyFunction(
        lambda: (Manifest.objects.aggregate(last=Max("generation"))["last"] or 0) + 1
    )
    provider = "test"
    model = "scripted"
    version = "1"
    dimensions = 8
    digest = factory.LazyAttribute(
        lambda m: Identity(m.provider, m.model, m.version, m.dimensions).digest
    )

    @classmethod
    def _create(cls, model_class: type[Manifest], *args: Any, **kwargs: Any) -> Manifest:
        state = kwargs.pop("state")
        manifest = super()._create(model_class, *args, **kwargs)
        ends = {"state": "retired", "finished_at": Now()}
        moves: dict[str, dict[str, Any]] = {
            "active": {"state": "active", "covered_at": Now(), "activated_at": Now()},
            "retired": ends,
        }
        if state in moves:
            Manifest.objects.filter(state=state).exclude(state="retired").update(**ends)
            Manifest.objects.filter(pk=manifest.pk).update(**moves[state])
            manifest.refresh_from_db()
        return manifest


def unit_vector(*numbers: float, dimensions: int = 8) -> Any:
    """Return a vector of length one that begins with these numbers."""
    vector = np.zeros(dimensions, np.float32)
    vector[: len(numbers) or 1] = numbers or (1.0,)
    return vector / np.linalg.norm(vector)


class SemanticJobFactory(RowFactory[SemanticJob]):
    """The job of a message under a manifest, moved on to its state by those who move jobs."""

    class Meta:
        model = SemanticJob

    class Params:
        running = Trait(state="running")
        completed = Trait(state="completed")
        failed = Trait(state="failed")
        invalidated = Trait(state="invalidated")

    state = "queued"
    error_code = "semantic_provider_offline"
    manifest = factory.SubFactory(ManifestFactory)
    message = factory.SubFactory(MessageFactory)

    @classmethod
    def _create(cls, *_: Any, **kwargs: Any) -> SemanticJob:
        manifest, message = kwargs["manifest"], kwargs["message"]
        # where the manifest was there first, the message's own trigger has enqueued it
        semantic_transitions.backfill(manifest.pk)
        job = SemanticJob.objects.get(manifest=manifest, message=message, state="queued")
        if kwargs["state"] == "invalidated":
            semantic_transitions.forget(message.pk)
        elif kwargs["state"] != "queued":
            claim = claim_of(job)
            if kwargs["state"] == "completed":
                semantic_transitions.persist(manifest.pk, [Derived(claim, unit_vector())])
            elif kwargs["state"] == "failed":
                semantic_transitions.fail([(claim, ErrorCode(kwargs["error_code"]))])
        job.refresh_from_db()
        return job


def claim_of(job: SemanticJob) -> Claim:
    """Claim the job, which is the next that waits."""
    (claim,) = semantic_transitions.claim_jobs(job.manifest_id, limit=1)
    assert claim.job_id == job.pk
    return claim


def expired(job: SemanticJob) -> SemanticJob:
    """Age the job's lease by the database's clock, as if its time had passed."""
    with pgtrigger.ignore("semantic.SemanticJob:lease_belongs_to_its_claim"):
        SemanticJob.objects.filter(pk=job.pk).update(
            lease_expires_at=Now() - timedelta(milliseconds=1), write_mark=F("write_mark") + 1
        )
    job.refresh_from_db()
    return job


def let_retries_come_due() -> None:
    """Let the cool-down of every failure be over, by the database's clock."""
    with pgtrigger.ignore("semantic.SemanticJob:end_is_final"):
        SemanticJob.objects.filter(retry_at__isnull=False).update(
            retry_at=Now(), write_mark=F("write_mark") + 1
        )


class EmbeddingFactory(RowFactory[Embedding]):
    """The vector of a completed job."""

    class Meta:
        model = Embedding

    job = factory.SubFactory(SemanticJobFactory, completed=True)

    @classmethod
    def _create(cls, *_: Any, **kwargs: Any) -> Embedding:
        return Embedding.objects.get(job_id=kwargs["job"].pk)


class MessageWordsFactory(RowFactory[MessageWords]):
    """The words of a message, as the database made them."""

    class Meta:
        model = MessageWords

    message = factory.SubFactory(MessageFactory)

    @classmethod
    def _create(cls, *_: Any, **kwargs: Any) -> MessageWords:
        return MessageWords.objects.get(pk=kwargs["message"].pk)


class SemanticReceiptFactory(RowFactory[SemanticReceipt]):
    class Meta:
        model = SemanticReceipt

    class Params:
        failed = Trait(outcome="failed", error_code="semantic_provider_offline")

    job_id = factory.Sequence(lambda n: n + 1)
    message_id = 1
    manifest_generation = 1
    attempt = 1
    outcome = "completed"


def fence_of(row: Turn | WorkJob) -> Fence:
    """Return the proof the owner of a running turn or job holds."""
    assert row.claim_token is not None
    return Fence(row.pk, row.generation, row.claim_token)


def request_facts(**changes: Any) -> RequestFacts:
    """Return what a request's receipt would record."""
    facts = {
        "provider_api": "responses",
        "model": "scripted",
        "instructions_digest": digest("instructions"),
        "input_digest": digest("input"),
        "tools_digest": digest("tools"),
        "request_digest": digest("request"),
        "message_count": 1,
        "byte_count": 12,
        "offers_tools": True,
    }
    return RequestFacts(**{**facts, **changes})
