"""Manifests are begun, filled, and take over from one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from recovery.errors import ErrorCode
from semantic import bounds
from semantic.embedders.embedder import Identity
from semantic.models import Manifest, SemanticJob
from semantic.transitions.enqueuing import look_on

# Whoever writes a message has committed, or enqueues for the manifest that is begun under this
# lock. It waits for those who are writing, and they are quick.
_HOLD_MESSAGES: Final = "LOCK TABLE turns_message IN SHARE ROW EXCLUSIVE MODE"
# They speak of one text. Any other says that the provider was not there for it.
_OF_THE_TEXT: Final = (
    ErrorCode.TEXT_NOT_EMBEDDABLE,
    ErrorCode.SEMANTIC_ATTEMPTS_EXHAUSTED,
    ErrorCode.PROVIDER_REJECTED,
    ErrorCode.PROVIDER_CONTEXT_EXCEEDED,
)
_PROGRESS: Final = """
    SELECT (SELECT count(*) FROM turns_message
            WHERE state <> 'streaming' AND text ~ '\\S'),
        (SELECT count(*) FROM semantic_embedding WHERE manifest_id = %(manifest)s),
        count(DISTINCT j.message_id) FILTER (WHERE j.state = 'failed' AND NOT EXISTS (
            SELECT FROM semantic_semanticjob n WHERE n.conversation_id = j.conversation_id
                AND n.message_id = j.message_id AND n.manifest_id = j.manifest_id
                AND n.id > j.id)),
        count(*) FILTER (WHERE j.state IN ('queued', 'running'))
    FROM semantic_semanticjob j
    WHERE j.manifest_id = %(manifest)s AND j.state IN ('queued', 'running', 'failed')
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the messages that have a text: how many there are, have their vector, have none as
    their last job failed, and are waiting or at work."""

    total: int
    done: int
    failed: int
    open: int


def ensure(identity: Identity) -> Manifest:
    """Return the manifest that answers, or is being built, by this identity; begin it if there
    is none."""
    return _present(identity) or _begin(identity, anew=False)


def begin(identity: Identity) -> Manifest:
    """Return a new manifest to be filled; one that was being built before is retired."""
    return _begin(identity, anew=True)


def rebuild() -> Manifest:
    """Begin again with the identity that answers, or else with the one being built.

    Raises:
        Manifest.DoesNotExist: nothing was ever begun.
    """
    # "active" sorts before "building"
    last = _living().order_by("state")[:1].get()
    return begin(
        Identity(
            provider=last.provider,
            model=last.model,
            version=last.version,
            dimensions=last.dimensions,
            query_prefix=last.query_prefix,
            passage_prefix=last.passage_prefix,
        )
    )


def _living() -> QuerySet[Manifest]:
    return Manifest.objects.exclude(state=Manifest.State.RETIRED)


def _present(identity: Identity) -> Manifest | None:
    return _living().filter(digest=identity.digest).order_by("state").first()


@transaction.atomic(durable=True)
def _begin(identity: Identity, *, anew: bool) -> Manifest:
    with connection.cursor() as cursor:
        cursor.execute(_HOLD_MESSAGES)
    # Whoever began one at the same time has committed by now.
    present = None if anew else _present(identity)
    if present is not None:
        return present
    _living().filter(state=Manifest.State.BUILDING).update(
        state=Manifest.State.RETIRED, finished_at=Now()
    )
    last = Manifest.objects.aggregate(last=Max("generation"))["last"] or 0
    manifest = Manifest.objects.create(
        generation=last + 1,
        provider=identity.provider,
        model=identity.model,
        version=identity.version,
        dimensions=identity.dimensions,
        query_prefix=identity.query_prefix,
        passage_prefix=identity.passage_prefix,
        digest=identity.digest,
    )
    manifest.refresh_from_db()
    return manifest


def backfill(manifest_id: int) -> int:
    """Enqueue some of what was said before the manifest was begun; return how many messages.

    Zero means that all have been looked at. It goes on where it, or another, was cut short.
    """
    enqueued = 0
    while enqueued < bounds.RECONCILE_ROWS:
        looked = look_on(manifest_id)
        enqueued += looked.enqueued
        if looked.covered:
            break
    return enqueued


def activate_when_complete(manifest_id: int) -> bool:
    """Let the manifest answer in the place of the one that does, if it covers every message by
    now; return whether it has taken over.

    A message is covered by its vector, or by a job that ended without one and is not tried
    again. Where another manifest answers it must not give way to one whose provider was not
    there: that would be found out by those who search.
    """
    uncovered = _living().filter(pk=manifest_id, covered_at=None)
    if uncovered.exists() and not look_on(manifest_id).covered:
        return False
    return _take_over(manifest_id)


@transaction.atomic(durable=True)
def _take_over(manifest_id: int) -> bool:
    both = _living().select_for_update(no_key=True).order_by("pk")
    manifests = {manifest.pk: manifest for manifest in both}
    manifest = manifests.pop(manifest_id, None)
    if manifest is None or manifest.state != Manifest.State.BUILDING:
        return False
    if _waits(manifest) or (manifests and was_let_down(manifest)):
        return False
    Manifest.objects.filter(pk__in=manifests).update(
        state=Manifest.State.RETIRED, finished_at=Now()
    )
    Manifest.objects.filter(pk=manifest_id).update(
        state=Manifest.State.ACTIVE, activated_at=Now()
    )
    return True


def _waits(manifest: Manifest) -> bool:
    """Return whether a job of the manifest is open, or another is to follow it."""
    jobs = SemanticJob.objects.filter(manifest=manifest)
    is_open = [SemanticJob.State.QUEUED, SemanticJob.State.RUNNING]
    return (
        jobs.filter(state__in=is_open).exists() or jobs.filter(retry_at__isnull=False).exists()
    )


def was_let_down(manifest: Manifest) -> bool:
    """Return whether messages have no vector because the provider was not there to the last."""
    failed = SemanticJob.objects.filter(
        manifest=manifest, state=SemanticJob.State.FAILED, round=bounds.ROUNDS_AFTER_FAILURE + 1
    )
    return failed.exclude(error_code__in=[code.value for code in _OF_THE_TEXT]).exists()


def progress(manifest: Manifest) -> Progress:
    """Return how far the manifest is. It reads every message."""
    with connection.cursor() as cursor:
        cursor.execute(_PROGRESS, {"manifest": manifest.pk})
        return Progress(*cursor.fetchone())
