"""How far derivation is, for `semantic_status` and whoever asks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from django.db import connection, transaction

from recovery.errors import ErrorCode
from semantic import indexes, transitions
from semantic.models import Manifest
from semantic.models.jobs import lease_is_over

_OPEN: Final = f"""
    SELECT count(*) FILTER (WHERE state = 'queued'),
        count(*) FILTER (WHERE state = 'running' AND NOT {lease_is_over("lease_expires_at")}),
        count(*) FILTER (WHERE state = 'running' AND {lease_is_over("lease_expires_at")})
    FROM semantic_semanticjob WHERE manifest_id = %s AND state IN ('queued', 'running')
"""  # noqa: S608  constants
# Of each message the last word: a failure that another job followed is history.
_FAILURES: Final = """
    SELECT j.error_code, count(*) FROM semantic_semanticjob j
        JOIN turns_message m ON m.id = j.message_id AND m.digest = j.digest
    WHERE j.manifest_id = %s AND j.state = 'failed' AND NOT EXISTS (
        SELECT FROM semantic_semanticjob n WHERE n.manifest_id = j.manifest_id
            AND n.message_id = j.message_id AND n.id > j.id)
    GROUP BY j.error_code ORDER BY count(*) DESC, j.error_code
"""
# The database's rules leave none; whoever switched them off finds out here.
_STALE: Final = """
    SELECT count(*) FROM semantic_embedding e
        LEFT JOIN turns_message m ON m.id = e.message_id
    WHERE e.manifest_id = %s AND e.digest IS DISTINCT FROM m.digest
"""


@dataclass(frozen=True, slots=True)
class ManifestStatus:
    """One manifest. `failures` counts, by code, messages without a vector that are not tried
    now; some are tried again later (`semantic/transitions/reconciling.py`)."""

    generation: int
    state: str
    provider: str
    model: str
    dimensions: int
    total: int
    done: int
    queued: int
    leased: int
    expired: int
    failures: dict[str, int]
    stale: int
    has_index: bool
    # why it does not take over, if it is kept from that
    withheld: str

    @property
    def is_complete(self) -> bool:
        """Whether every message can be found by its meaning, if it has one, or could be as
        soon as the manifest takes over."""
        meaningless = self.failures.get(ErrorCode.TEXT_NOT_EMBEDDABLE.value, 0)
        is_all = self.done + meaningless >= self.total
        return is_all and not self.stale and not self.withheld


@dataclass(frozen=True, slots=True)
class Status:
    """The manifest that answers, if there is one, and the one being built."""

    manifests: tuple[ManifestStatus, ...]

    @property
    def is_complete(self) -> bool:
        """Whether a manifest answers, and each covers every message."""
        answering = any(each.state == Manifest.State.ACTIVE for each in self.manifests)
        return answering and all(each.is_complete for each in self.manifests)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "complete": self.is_complete,
            "manifests": [asdict(each) for each in self.manifests],
        }


@transaction.atomic(durable=True)
def read_status() -> Status:
    """Return how far each manifest is that is not retired, the answering one first.

    It is one snapshot: while derivation goes on, counts of several moments would not add up.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    derived = Manifest.objects.exclude(state=Manifest.State.RETIRED).order_by("state", "pk")
    return Status(tuple(_status(manifest) for manifest in derived))


def _status(manifest: Manifest) -> ManifestStatus:
    progress = transitions.progress(manifest)
    with connection.cursor() as cursor:
        cursor.execute(_OPEN, [manifest.pk])
        queued, leased, expired = cursor.fetchone()
        cursor.execute(_FAILURES, [manifest.pk])
        failures = dict(cursor.fetchall())
        cursor.execute(_STALE, [manifest.pk])
        (stale,) = cursor.fetchone()
    building = manifest.state == Manifest.State.BUILDING
    # what is still open may yet succeed
    may_be_judged = building and transitions.lag(manifest.pk).is_over
    return ManifestStatus(
        generation=manifest.generation,
        state=manifest.state,
        provider=manifest.provider,
        model=manifest.model,
        dimensions=manifest.dimensions,
        total=progress.total,
        done=progress.done,
        queued=queued,
        leased=leased,
        expired=expired,
        failures=failures,
        stale=stale,
        has_index=indexes.is_built(manifest),
        withheld=transitions.shortfall(manifest.pk).words if may_be_judged else "",
    )
