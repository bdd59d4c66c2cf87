"""An embedder that knows a few meanings, and messages that are derived by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from django.db import connection, transaction

from recovery.errors import ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS
from semantic.embedders.embedder import Embedder, Identity, Purpose, Vector
from semantic.models import Manifest
from turns.digests import digest
from turns.models import Message

# Words that mean the same point the same way.
MEANINGS: Final = (
    {"boat", "ship", "vessel", "boot"},
    {"money", "cash", "price", "cost"},
    {"doctor", "physician", "clinic"},
    {"dog", "hound", "puppy"},
    {"rain", "weather", "storm"},
    {"train", "railway", "station"},
)
DIMENSIONS: Final = len(MEANINGS) + 2


@dataclass
class KnowsMeanings:
    """Embeds a text by which of `MEANINGS` it speaks of; what speaks of none, by itself."""

    identity: Identity = field(
        default_factory=lambda: Identity("test", "meanings", "1", DIMENSIONS)
    )
    batch_items: int = 32
    asked: list[str] = field(default_factory=list)

    async def embed(
        self,
        texts: Sequence[str],
        purpose: Purpose,  # noqa: ARG002 - as embedders are asked
    ) -> Sequence[Vector | ErrorCode]:
        self.asked += texts
        return [meaning(text) for text in texts]

    async def aclose(self) -> None:
        """Nothing to let go."""


def meaning(text: str) -> Vector:
    """Return the unit vector of a text."""
    words = text.casefold().replace(".", " ").replace("?", " ").split()
    spoken = [float(sum(word in known for word in words)) for known in MEANINGS]
    point = np.array([*spoken, 0.0, 0.0 if any(spoken) else 1.0], dtype=np.float32)
    point[-2] = 0.05 * len(words)  # longer texts say it less plainly
    unit: Vector = point / np.linalg.norm(point)
    return unit


def active_manifest(embedder: Embedder) -> Manifest:
    """Return an active manifest of this embedder."""
    identity = embedder.identity
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            """INSERT INTO semantic_manifest (generation, state, provider, model, version,
                dimensions, query_prefix, passage_prefix, digest, activated_at)
            SELECT coalesce(max(generation), 0) + 1, 'active', %s, %s, %s, %s, '', '', %s, now()
            FROM semantic_manifest RETURNING id""",
            [
                identity.provider, identity.model, identity.version, identity.dimensions,
                identity.digest,
            ],
        )  # fmt: skip
        (pk,) = cursor.fetchone()
    return Manifest.objects.get(pk=pk)


def derive(manifest: Manifest, messages: Iterable[Message]) -> None:
    """Give messages their vectors, as the worker would."""
    for message in messages:
        with transaction.atomic(), connection.cursor() as cursor:
            values: dict[str, Any] = {
                "manifest": manifest.pk,
                "message": message.pk,
                "vector": f"[{','.join(map(str, meaning(message.text).tolist()))}]",
                "digest": digest(message.text),
                "first": 1 << GENERATION_SHIFT_BITS,
            }
            cursor.execute(
                """INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id,
                    person_id, digest, state, error_code, round, attempts, write_mark)
                SELECT %(manifest)s, m.id, m.conversation_id, c.owner_id, m.digest, 'queued',
                    '', 1, 0, 0
                FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id
                WHERE m.id = %(message)s AND NOT EXISTS (SELECT FROM semantic_semanticjob j
                    WHERE j.message_id = m.id AND j.manifest_id = %(manifest)s
                        AND j.state = 'queued')""",
                values,
            )
            cursor.execute(
                """UPDATE semantic_semanticjob SET state = 'running', attempts = 1,
                    write_mark = %(first)s, claim_token = gen_random_uuid(),
                    lease_expires_at = statement_timestamp() + interval '30 seconds'
                WHERE message_id = %(message)s AND manifest_id = %(manifest)s
                    AND state = 'queued'""",
                values,
            )
            cursor.execute(
                """WITH done AS (UPDATE semantic_semanticjob SET state = 'completed',
                    finished_at = now(), write_mark = %(first)s + 1
                WHERE message_id = %(message)s AND manifest_id = %(manifest)s
                    AND state = 'running' RETURNING *)
                INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id,
                    person_id, job_id, attempt, digest, vector)
                SELECT manifest_id, message_id, conversation_id, person_id, id, attempts,
                    digest, %(vector)s::vector FROM done""",
                values,
            )
