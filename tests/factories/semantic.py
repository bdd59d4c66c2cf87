"""Manifests, and what is derived under them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import factory
import numpy as np
import pgtrigger
from django.db.models import F, Max
from django.db.models.functions import Now

from recovery.errors import ErrorCode
from semantic import transitions
from semantic.embedders.embedder import Identity
from semantic.models import (
    Embedding,
    Manifest,
    MessageWords,
    SemanticJob,
    SemanticReceipt,
)
from semantic.transitions import Claim, Derived
from tests.factories.rows import RowFactory, Trait
from tests.factories.turns import MessageFactory


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
        transitions.backfill(manifest.pk)
        job = SemanticJob.objects.get(manifest=manifest, message=message, state="queued")
        if kwargs["state"] == "invalidated":
            transitions.forget(message.pk)
        elif kwargs["state"] != "queued":
            claim = claim_of(job)
            if kwargs["state"] == "completed":
                transitions.persist(manifest.pk, [Derived(claim, unit_vector())])
            elif kwargs["state"] == "failed":
                transitions.fail([(claim, ErrorCode(kwargs["error_code"]))])
        job.refresh_from_db()
        return job


def claim_of(job: SemanticJob) -> Claim:
    """Claim the job, which is the next that waits."""
    (claim,) = transitions.claim_jobs(job.manifest_id, limit=1)
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
