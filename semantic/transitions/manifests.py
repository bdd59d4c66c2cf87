"""Manifests are begun and filled. How one takes over: `activating.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog
from django.db import connection, transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from recovery.blanks import has_words
from semantic import bounds
from semantic.embedders.embedder import Identity
from semantic.models import Manifest
from semantic.transitions.enqueuing import look_on

log = structlog.get_logger()

# Whoever writes a message has committed, or enqueues for the manifest that is begun under this
# lock. It waits for those who are writing, and they are quick.
_HOLD_MESSAGES: Final = "LOCK TABLE turns_message IN SHARE ROW EXCLUSIVE MODE"
_PROGRESS: Final = f"""
    SELECT (SELECT count(*) FROM turns_message
            WHERE state <> 'streaming' AND {has_words("text")}),
        (SELECT count(*) FROM semantic_embedding WHERE manifest_id = %(manifest)s),
        count(DISTINCT j.message_id) FILTER (WHERE j.state = 'failed' AND NOT EXISTS (
            SELECT FROM semantic_semanticjob n WHERE n.conversation_id = j.conversation_id
                AND n.message_id = j.message_id AND n.manifest_id = j.manifest_id
                AND n.id > j.id)),
        count(*) FILTER (WHERE j.state IN ('queued', 'running'))
    FROM semantic_semanticjob j
    WHERE j.manifest_id = %(manifest)s AND j.state IN ('queued', 'running', 'failed')
"""  # noqa: S608  constants


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
    is none. One that is being built by another is retired: whoever started last decides."""
    present = _present(identity)
    if present is not None and not _built_by_others(identity).exists():
        return present
    return _told(*_begin(identity, anew=False))


def begin(identity: Identity) -> Manifest:
    """Return a new manifest to be filled; one that was being built before is retired."""
    return _told(*_begin(identity, anew=True))


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


def _built_by_others(identity: Identity) -> QuerySet[Manifest]:
    return _living().filter(state=Manifest.State.BUILDING).exclude(digest=identity.digest)


@transaction.atomic(durable=True)
def _begin(identity: Identity, *, anew: bool) -> tuple[Manifest, bool, list[int]]:
    """Return the manifest, whether it is new, and the generations that were retired for it."""
    with connection.cursor() as cursor:
        cursor.execute(_HOLD_MESSAGES)
    # Whoever began one at the same time, or let it answer, has committed by now.
    list(_living().select_for_update(no_key=True).order_by("pk"))
    others = _living().filter(state=Manifest.State.BUILDING)
    present = None if anew else _present(identity)
    if present is not None:
        others = _built_by_others(identity)
    retired = list(others.values_list("generation", flat=True))
    others.update(state=Manifest.State.RETIRED, finished_at=Now())
    if present is not None:
        return present, False, retired
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
    return manifest, True, retired


def _told(manifest: Manifest, is_new: bool, retired: list[int]) -> Manifest:
    """Log what has become of manifests; return the one that is wanted."""
    for generation in retired:
        log.info("semantic.retired", generation=generation, state="building")
    if is_new:
        log.info("semantic.begun", generation=manifest.generation, model=manifest.model)
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


def progress(manifest: Manifest) -> Progress:
    """Return how far the manifest is. It reads every message."""
    with connection.cursor() as cursor:
        cursor.execute(_PROGRESS, {"manifest": manifest.pk})
        return Progress(*cursor.fetchone())
