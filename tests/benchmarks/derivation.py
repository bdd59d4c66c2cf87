"""Deriving what waits: the worker against plain SQL, and against the bare embedder.

20,000 messages of 40 words at most, none of them derived. With WordLlama the worker claims,
embeds and persists them all; the floor makes the same writes into the same tables (claim, end,
vector, receipt), their triggers and keys included, in batches of the same size on one session,
and is given the vectors, which it need not compute. With MiniLM, whose computing is nearly all
of it, the same texts go through the embedder alone. Both sides take turns, on fresh tables.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import uvloop
from django.db import connection

from recovery import statements
from recovery.arrays import array
from semantic import bounds, transitions
from semantic.embedders.embedder import Embedder, Purpose, Vector
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.wordllama import WordLlamaEmbedder
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from semantic.vectors import VectorArray
from semantic.worker import Drained, SemanticWorker
from tests.benchmarks.databases import Place
from tests.benchmarks.fill import unguarded
from tests.benchmarks.measuring import median, seconds, spread
from tests.benchmarks.report import Line, at_least, at_most
from tests.factories import UserFactory
from turns.digests import digest

MESSAGES: Final = 20_000
SLOW_MESSAGES: Final = 600
CONVERSATIONS: Final = 100
SPEECH: Final = (
    "the boat in the harbour was late because of the storm and nobody had told the people who "
    "waited for bread letters and news from the other side where the train ends at a small "
    "station with a garden behind it we asked what it costs to mend a broken window this week"
)
_ADD_MESSAGES: Final = """
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, finished_at)
    SELECT n, 1 + n %% %(conversations)s, 'user', 'complete', text, digest, now()
    FROM unnest(%(texts)s::text[], %(digests)s::text[]) WITH ORDINALITY AS t (text, digest, n)
"""
_ADD_CONVERSATIONS: Final = """
    INSERT INTO turns_conversation (id, owner_id, title, revision, rewritten_revision)
    SELECT n, %(person)s, '', 1, 0 FROM generate_series(1, %(conversations)s) AS n
"""
_ADD_JOBS: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
        digest, state, error_code, round, attempts, write_mark)
    SELECT %(manifest)s, id, conversation_id, %(person)s, digest, 'queued', '', 1, 0, 0
    FROM turns_message WHERE id <= %(count)s ORDER BY id
"""
_EMPTY: Final = "TRUNCATE semantic_embedding, semantic_semanticjob, semantic_semanticreceipt"
# The floor: a claim, and then an end with vector and receipt, a statement each.
_CLAIM: Final = f"""
    UPDATE semantic_semanticjob j SET state = 'running', attempts = 1,
        write_mark = 1::bigint << 32, claim_token = gen_random_uuid(),
        lease_expires_at = statement_timestamp() + interval '{bounds.LEASE_SECONDS} s'
    FROM turns_message m WHERE m.id = j.message_id AND j.id = ANY(
        SELECT id FROM semantic_semanticjob WHERE manifest_id = %(manifest)s
            AND state = 'queued' ORDER BY id LIMIT %(limit)s)
    RETURNING j.id, m.id, m.text
"""
_PERSIST: Final = """
    WITH given AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(vectors)s::vector[]) AS g (id, vector)
    ), ended AS (
        UPDATE semantic_semanticjob j SET state = 'completed',
            finished_at = statement_timestamp(), write_mark = write_mark + 1
        FROM given g WHERE j.id = g.id RETURNING j.*, g.vector
    ), receipts AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code) SELECT id, message_id, 1, attempts, 'completed', '' FROM ended
    )
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT manifest_id, message_id, conversation_id, person_id, id, attempts, digest, vector
    FROM ended RETURNING 1
"""


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return what the worker reaches of plain SQL, and of the bare embedder."""
    del place
    bench = _Derivation()
    return [
        *bench.against_sql(WordLlamaEmbedder(), rounds=2 if quick else 5),
        *bench.against_embedder(MiniLmEmbedder(), rounds=1 if quick else 3),
        _longest_batch(MiniLmEmbedder()),
    ]


def _longest_batch(embedder: Embedder) -> Line:
    """Return how much of its time the longest batch takes: half, or a slow moment ends it."""
    texts = ["word " * (bounds.EMBEDDED_TEXT_MAX_BYTES // 5)] * embedder.batch_items
    asyncio.run(_embedded(embedder, ["one"]))
    took = seconds(lambda: asyncio.run(_embedded(embedder, texts)))
    return at_most(
        "MiniLM: the most a batch can hold ÷ its time limit",
        took / bounds.EMBEDDER_TIMEOUT_SECONDS,
        0.5,
    )


class _Derivation:
    def __init__(self) -> None:
        chance, words = random.Random(5), SPEECH.split()
        self._texts = [
            " ".join(chance.choices(words, k=chance.randint(3, 40))) for _ in range(MESSAGES)
        ]
        self._person = UserFactory.create().pk
        values = {
            "person": self._person,
            "conversations": CONVERSATIONS,
            "texts": self._texts,
            "digests": [digest(text) for text in self._texts],
        }
        with unguarded() as cursor:
            cursor.execute(_ADD_CONVERSATIONS, values)
            cursor.execute(_ADD_MESSAGES, values)

    def against_sql(self, embedder: Embedder, *, rounds: int) -> Iterator[Line]:
        """Let worker and floor take turns on all messages."""
        vectors = asyncio.run(_embedded(embedder, self._texts))
        manifest = self._manifest(embedder)
        floors: list[float] = []
        unguarded_floors: list[float] = []
        workers: list[float] = []
        for _ in range(rounds):
            for times, guarded in ((floors, True), (unguarded_floors, False)):
                self._queue(manifest, MESSAGES)
                write = _floor(manifest, embedder.batch_items, vectors, guarded=guarded)
                times.append(seconds(write))
                _require(MESSAGES)
            self._queue(manifest, MESSAGES)
            workers.append(self._drain(manifest, embedder, MESSAGES))
        yield at_least(
            "WordLlama: 20,000 messages, worker ÷ plain SQL (rate)",
            median(floors) / median(workers),
            0.7,
        )
        yield Line(
            "the same against plain SQL without triggers and keys",
            f"{median(unguarded_floors) / median(workers):.2f}",
        )
        yield Line(f"plain SQL, median of {rounds}", _told(floors, MESSAGES))
        yield Line(f"plain SQL without triggers and keys, median of {rounds}",
                   _told(unguarded_floors, MESSAGES))  # fmt: skip
        yield Line(f"worker, median of {rounds}", _told(workers, MESSAGES))

    def against_embedder(self, embedder: Embedder, *, rounds: int) -> Iterator[Line]:
        """Let worker and bare embedder take turns on some messages."""
        texts = self._texts[:SLOW_MESSAGES]
        asyncio.run(_embedded(embedder, texts[:32]))  # the weights are read
        manifest = self._manifest(embedder)
        bare, workers = [], []
        for _ in range(rounds):
            bare.append(seconds(lambda: uvloop.run(_embedded(embedder, texts))))
            self._queue(manifest, SLOW_MESSAGES)
            workers.append(self._drain(manifest, embedder, SLOW_MESSAGES))
        yield at_least(
            f"MiniLM: {SLOW_MESSAGES} messages, worker ÷ bare embedder (rate)",
            median(bare) / median(workers),
            0.6,
        )
        yield Line(f"bare embedder, median of {rounds}", _told(bare, SLOW_MESSAGES))
        yield Line(f"MiniLM worker, median of {rounds}", _told(workers, SLOW_MESSAGES))

    def _manifest(self, embedder: Embedder) -> Manifest:
        with connection.cursor() as cursor:
            cursor.execute(_EMPTY)
        manifest = transitions.begin(embedder.identity)
        with connection.cursor() as cursor:
            cursor.execute(_EMPTY)
        return manifest

    def _queue(self, manifest: Manifest, count: int) -> None:
        values = {"manifest": manifest.pk, "person": self._person, "count": count}
        with unguarded() as cursor:
            cursor.execute(_EMPTY)
            cursor.execute(_ADD_JOBS, values)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE semantic_semanticjob, turns_message")
            cursor.execute("CHECKPOINT")

    def _drain(self, manifest: Manifest, embedder: Embedder, count: int) -> float:
        worker = SemanticWorker(lambda each: embedder if each.pk == manifest.pk else None)
        drained: list[Drained] = []
        took = seconds(lambda: drained.append(uvloop.run(worker.drain())))
        assert drained == [Drained(completed=count)], drained
        _require(count)
        return took


async def _embedded(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    vectors: list[Vector] = []
    for start in range(0, len(texts), embedder.batch_items):
        batch = texts[start : start + embedder.batch_items]
        for vector in await embedder.embed(batch, Purpose.PASSAGE):
            assert isinstance(vector, np.ndarray)
            vectors.append(vector)
    return vectors


def _floor(
    manifest: Manifest, batch: int, vectors: Sequence[Vector], *, guarded: bool
) -> Callable[[], None]:
    """Return what writes the same rows as a pass of the worker."""
    values: dict[str, Any] = {"manifest": manifest.pk, "limit": batch}

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SET session_replication_role = " + ("origin" if guarded else "replica")
            )
        while claimed := statements.run(_CLAIM, values):
            given = {
                "ids": array(pk for pk, _, _ in claimed),
                "vectors": VectorArray([vectors[message - 1] for _, message, _ in claimed]),
            }
            statements.run(_PERSIST, given)
        with connection.cursor() as cursor:
            cursor.execute("RESET session_replication_role")

    return write


def _require(count: int) -> None:
    assert SemanticJob.objects.filter(state="completed").count() == count
    assert Embedding.objects.count() == SemanticReceipt.objects.count() == count


def _told(times: Sequence[float], count: int) -> str:
    return f"{median(times):.2f} s ({spread(times)}), {count / median(times):,.0f}/s"
