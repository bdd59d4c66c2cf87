"""A manifest takes over from the one that answers, once it has caught up.

A moment without any open job would never come where people go on talking. So the swap waits for
what there was when the manifest had looked at every message for the first time (`covered_at`),
and only holds what came later to a bound: derivation keeps up, and the provider is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog
from django.db import connection, transaction
from django.db.models.functions import Now

from semantic import bounds
from semantic.models import Embedding, Manifest
from semantic.transitions.enqueuing import look_on
from semantic.transitions.giving_up import shortfall

log = structlog.get_logger()

# Of the job `j`, which has not settled. A job whose retry is to come, and the one that retries,
# are followed back to the first: what was there before the look stays so for all its rounds.
_WAS_THERE: Final = """
    p.covered_at IS NULL OR EXISTS (
        SELECT FROM semantic_semanticjob f
        WHERE f.conversation_id = j.conversation_id AND f.message_id = j.message_id
            AND f.manifest_id = j.manifest_id AND f.digest = j.digest
            AND f.state IN ('queued', 'running', 'failed') AND f.created_at <= p.covered_at)
"""
_LAG: Final = f"""
    SELECT EXISTS (
        SELECT FROM semantic_semanticjob j JOIN semantic_manifest p ON p.id = j.manifest_id
        WHERE j.manifest_id = %(manifest)s AND j.state IN ('queued', 'running') AND (
            j.created_at <= statement_timestamp() - interval '{bounds.SWAP_LAG_SECONDS} seconds'
            OR {_WAS_THERE})
    ), EXISTS (
        SELECT FROM semantic_semanticjob j JOIN semantic_manifest p ON p.id = j.manifest_id
        WHERE j.manifest_id = %(manifest)s AND j.retry_at IS NOT NULL AND (
            coalesce(j.finished_at >= (
                SELECT created_at FROM semantic_embedding WHERE manifest_id = %(manifest)s
                ORDER BY id DESC LIMIT 1), true)
            OR {_WAS_THERE})
    )
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Lag:
    """What a manifest must not answer without, and still lacks: messages whose jobs are `open`,
    and messages that `failed` and are to be tried again."""

    open: bool
    failed: bool

    @property
    def is_over(self) -> bool:
        """Whether it lacks nothing of that."""
        return not (self.open or self.failed)


def lag(manifest_id: int) -> Lag:
    """Return what the manifest must not answer without.

    That are the messages that were there when it was covered, until each has its vector or is
    given up. Of what was said or changed later it is what has been open for longer than
    `bounds.SWAP_LAG_SECONDS`, and what failed, unless the provider has made a vector since.
    """
    with connection.cursor() as cursor:
        cursor.execute(_LAG, {"manifest": manifest_id})
        return Lag(*cursor.fetchone())


def activate_when_complete(manifest_id: int) -> bool:
    """Let the manifest answer in the place of the one that does, if it has caught up; return
    whether it has taken over.

    Afterwards each message has its vector, or a job that ended without one and is not tried
    again, but for what was said or changed since the manifest was covered: that may still be on
    its way, as with any new message, within the bounds of `lag`. Where another
    manifest answers it does not give way to one that gave up too much (`Shortfall`): that would
    be found out by those who search.
    """
    living = Manifest.objects.exclude(state=Manifest.State.RETIRED)
    uncovered = living.filter(pk=manifest_id, covered_at=None)
    if uncovered.exists() and not look_on(manifest_id).covered:
        return False
    taken_over = _take_over(manifest_id)
    if taken_over is None:
        return False
    generation, retired = taken_over
    log.info(
        "semantic.activated",
        generation=generation,
        previous=retired,
        count=Embedding.objects.filter(manifest=manifest_id).count(),
    )
    return True


@transaction.atomic(durable=True)
def _take_over(manifest_id: int) -> tuple[int, int | None] | None:
    """Return its generation and that of the one it took the place of, if it has taken over."""
    living = Manifest.objects.exclude(state=Manifest.State.RETIRED)
    both = living.select_for_update(no_key=True).order_by("pk")
    manifests = {manifest.pk: manifest for manifest in both}
    manifest = manifests.pop(manifest_id, None)
    if manifest is None or manifest.state != Manifest.State.BUILDING:
        return None
    if not lag(manifest_id).is_over or shortfall(manifest_id).is_too_much:
        return None
    Manifest.objects.filter(pk__in=manifests).update(
        state=Manifest.State.RETIRED, finished_at=Now()
    )
    Manifest.objects.filter(pk=manifest_id).update(
        state=Manifest.State.ACTIVE, activated_at=Now()
    )
    retired = next((other.generation for other in manifests.values()), None)
    return manifest.generation, retired
