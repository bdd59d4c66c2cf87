"""Messages, and manifests that are filled with their vectors."""

from __future__ import annotations

from typing import Any, Final

from django.db import connection, transaction

from recovery.errors import ErrorCode
from semantic import transitions
from semantic.embedders.embedder import Identity
from semantic.models import Embedding, Manifest, MessageWords, SemanticJob, SemanticReceipt
from semantic.transitions import Derived, Reconciled
from tests import factories as make

IDENTITY: Final = Identity("test", "scripted", "1", 8)
OTHER: Final = Identity("test", "better", "1", 8)
NOTHING_TO_DO: Final = Reconciled(0, 0, 0, 0, more=False)
OFFLINE: Final = ErrorCode.SEMANTIC_PROVIDER_OFFLINE


def say(count: int) -> list[int]:
    conversation = make.ConversationFactory.create()
    return [
        make.MessageFactory.create(conversation=conversation, text=f"Text {n}").pk
        for n in range(count)
    ]


def derive(manifest: Manifest) -> int:
    """Complete all that can be claimed; return how many jobs."""
    completed = 0
    while claims := transitions.claim_jobs(manifest.pk, limit=32):
        derived = [Derived(claim, make.unit_vector()) for claim in claims]
        completed += len(transitions.persist(manifest.pk, derived).completed)
    return completed


def filled(identity: Identity = IDENTITY) -> Manifest:
    """Return a manifest that answers, with all that was said."""
    manifest = transitions.begin(identity)
    while transitions.backfill(manifest.pk):
        pass
    derive(manifest)
    assert transitions.activate_when_complete(manifest.pk)
    manifest.refresh_from_db()
    return manifest


def behind_the_triggers(statement: str, *values: Any) -> None:
    """Change messages as a superuser who has switched all rules off."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, values)


def fail_all(manifest: Manifest, code: ErrorCode = OFFLINE) -> int:
    claims = transitions.claim_jobs(manifest.pk, limit=32)
    return transitions.fail([(claim, code) for claim in claims])


def everything() -> list[Any]:
    models = (Manifest, SemanticJob, Embedding, MessageWords, SemanticReceipt)
    return [list(model.objects.order_by("pk").values_list("pk")) for model in models] + [
        list(SemanticJob.objects.order_by("pk").values("pk", "state", "write_mark"))
    ]
