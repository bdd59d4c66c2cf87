"""Searching as one of 200 people with 500 messages each, and as one with 100,000.

The bare query is what somebody would write by hand who knows the tables: words and vectors of
one person, reciprocal rank, the texts; on one session, with the vector of the query given. A
search of Holdfast also checks the query, finds out which manifest answers, embeds the query
with WordLlama, goes through the pool of database threads, and cuts excerpts. Each query is
asked both ways, one after the other, and chance says which goes first: it reads in the pages
that the other finds. Those with few messages are measured before the one with many has come,
and again afterwards.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import psycopg
import uvloop
from django.db import connection

from recovery import statements
from recovery.arrays import array
from semantic import bounds, candidates, indexes, ranking, transitions
from semantic.candidates import Vectors
from semantic.embedders.embedder import Purpose, Vector
from semantic.embedders.wordllama import WordLlamaEmbedder
from semantic.models import Manifest
from semantic.models.messages import WORDS_SQL
from semantic.search import Scope, search
from semantic.vectors import VectorArray, VectorBytes
from tests.benchmarks.databases import Place
from tests.benchmarks.fill import unguarded
from tests.benchmarks.measuring import median, percentile
from tests.benchmarks.report import Line, at_least, at_most
from tests.factories import UserFactory
from turns.digests import digest

PEOPLE: Final = 200
EACH: Final = 500
MANY: Final = 100_000
PER_CONVERSATION: Final = 50
QUERIES: Final = 150
BATCH: Final = 5_000
NEAREST: Final = 10
SUBJECTS: Final = (
    "boat harbour storm sail anchor captain island ferry",
    "invoice price budget salary tax account payment bank",
    "doctor clinic headache medicine nurse fever sleep rest",
    "recipe soup dinner garlic oven bread lemon pasta",
    "python database server query index thread memory deploy",
    "garden roses soil seeds fence lawn tomatoes rain",
    "train station ticket platform Lisbon luggage delay window",
    "school teacher exam homework maths library pupil lesson",
    "guitar concert melody piano chorus record singer stage",
    "football goal match referee stadium coach injury league",
)
GLUE: Final = (
    "I think that the", "please explain why my", "what happened with our",
    "we talked about a", "remember the old", "could you compare this",
    "it was because of the", "next week there is a",
)  # fmt: skip

_BARE: Final = """
    WITH worded AS (
        SELECT message_id, row_number() OVER (ORDER BY rank DESC, message_id DESC) AS place
        FROM (SELECT w.message_id, ts_rank(w.words, q, 1) AS rank
            FROM semantic_messagewords w, websearch_to_tsquery('simple', %(query)s) q
            WHERE w.words @@ (websearch_to_tsquery('simple', %(query)s) && %(mine)s::tsquery)
            ORDER BY rank DESC, message_id DESC LIMIT 50) AS b
    ), near AS (
        SELECT message_id, row_number() OVER (ORDER BY distance, message_id DESC) AS place
        FROM (SELECT message_id, {distance} AS distance FROM semantic_embedding
            WHERE manifest_id = {manifest} AND person_id = %(person)s
            ORDER BY {distance} LIMIT 50) AS n
    )
    SELECT m.id, m.conversation_id, m.text,
        coalesce(1.0 / (60 + w.place), 0) + coalesce(1.0 / (60 + n.place), 0) AS score
    FROM worded w FULL JOIN near n USING (message_id) JOIN turns_message m ON m.id = message_id
    ORDER BY score DESC, m.id DESC LIMIT 10
"""
_CONVERSATIONS: Final = """
    INSERT INTO turns_conversation (id, owner_id, title, revision, rewritten_revision)
    SELECT n, %(person)s, '', 1, 0 FROM generate_series(%(first)s, %(last)s) AS n
"""
_MESSAGES: Final = """
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, created_at,
        finished_at)
    SELECT n, n / %(each)s, 'user', 'complete', text, digest, now(), now()
    FROM unnest(%(ids)s::bigint[], %(texts)s::text[], %(digests)s::text[])
        AS t (n, text, digest)
"""
_EMBEDDINGS: Final = """
    INSERT INTO semantic_embedding (manifest_id, message_id, conversation_id, person_id, job_id,
        attempt, digest, vector)
    SELECT %(manifest)s, n, n / %(each)s, %(person)s, n, 1, digest, vector
    FROM unnest(%(ids)s::bigint[], %(digests)s::text[], %(vectors)s::vector[])
        AS t (n, digest, vector)
    RETURNING message_id
"""
_TABLES: Final = ("turns_conversation", "turns_message", "semantic_embedding",
                  "semantic_messagewords")  # fmt: skip


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return times of both sides, and how much the index finds of what there is."""
    return uvloop.run(_Bench(place, quick=quick).run())


class _Bench:
    def __init__(self, place: Place, *, quick: bool) -> None:
        self._url = place.url
        self._people, self._many = (20, 15_000) if quick else (PEOPLE, MANY)
        self._queries = 40 if quick else QUERIES
        self._random = random.Random(5)
        self._embedder = WordLlamaEmbedder(WordLlamaEmbedder.default_identity())
        self._next = PER_CONVERSATION

    async def run(self) -> list[Line]:
        """Fill, measure, fill again, measure again."""
        manifest = await asyncio.to_thread(self._begin)
        few = [await self._person(manifest, EACH) for _ in range(self._people)]
        await asyncio.to_thread(_settle)
        alone = await self._compare(manifest, few)
        much = await self._person(manifest, self._many)
        began = time.monotonic()
        await asyncio.to_thread(_settle)
        await asyncio.to_thread(indexes.build_index, manifest)
        built = time.monotonic() - began
        beside = await self._compare(manifest, few)
        large = await self._compare(manifest, [much])
        found, whole = await self._recall(manifest, much)
        return [
            at_most(
                f"{self._people} people of {EACH}: p95 of a search ÷ bare query",
                percentile(beside[0], 0.95) / percentile(beside[1], 0.95),
                2,
            ),
            Line("a search of theirs: median, p95", _told(beside[0])),
            Line("the bare query: median, p95", _told(beside[1])),
            at_most(
                f"one person of {self._many:,}: p95 of a search ÷ bare query",
                percentile(large[0], 0.95) / percentile(large[1], 0.95),
                2,
            ),
            Line("a search of theirs: median, p95", _told(large[0])),
            Line("the bare query: median, p95", _told(large[1])),
            at_least(
                f"recall@{NEAREST} of the index against exact comparison",
                found,
                0.95,
                digits=3,
            ),
            Line("queries for which the index gave up", f"{self._queries - whole}"),
            at_most(
                f"{self._people} people's median, with ÷ without the one of {self._many:,}",
                median(beside[0]) / median(alone[0]),
                1.5,
            ),
            Line("their searches without: median, p95", _told(alone[0])),
            Line("statistics, vacuum and building the index", f"{built:.0f} s"),
        ]

    def _begin(self) -> Manifest:
        manifest = transitions.ensure(self._embedder.identity)
        assert transitions.activate_when_complete(manifest.pk)
        return manifest

    async def _person(self, manifest: Manifest, count: int) -> int:
        """Add somebody who has said so much; return who it is."""
        person = await asyncio.to_thread(lambda: UserFactory.create().pk)
        for begun in range(0, count, BATCH):
            size = min(BATCH, count - begun)
            texts = [self._sentence() for _ in range(size)]
            vectors = await self._vectors(texts, Purpose.PASSAGE)
            ids = range(self._next, self._next + size)
            self._next += size
            await asyncio.to_thread(_add, manifest.pk, person, ids, texts, vectors)
        return int(person)

    async def _compare(
        self, manifest: Manifest, people: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """Return the milliseconds of searches, and of bare queries, side by side."""
        by_index = len(people) == 1
        ours: list[float] = []
        bare: list[float] = []
        queries = self._asked()
        vectors = await self._vectors(queries, Purpose.QUERY)
        with psycopg.ClientCursor(_session(self._url)) as cursor:
            for turn, (query, vector) in enumerate(zip(queries, vectors, strict=True)):
                person = people[turn % len(people)]
                statement, values = _by_hand(manifest, person, query, vector, by_index=by_index)
                by_hand = partial(_fetched, cursor, statement, values)
                # who goes first reads in the pages that the other then finds
                if self._random.random() < 0.5:
                    bare_took = by_hand()
                    took = await _searched(query, person)
                else:
                    took = await _searched(query, person)
                    bare_took = by_hand()
                if turn >= len(queries) // 10:  # the first warm up
                    ours.append(took)
                    bare.append(bare_took)
        return ours, bare

    async def _recall(self, manifest: Manifest, person: int) -> tuple[float, int]:
        """Return the share of the nearest that the index finds; how often it gave enough."""
        shares: list[float] = []
        whole = 0
        queries = self._asked()
        for vector in await self._vectors(queries, Purpose.QUERY):
            exact = await asyncio.to_thread(_nearest, manifest, person, vector, by_index=False)
            found = await asyncio.to_thread(_nearest, manifest, person, vector, by_index=True)
            whole += len(found) == bounds.CANDIDATES
            best = exact[:NEAREST]
            shares.append(len(set(best) & set(found[:NEAREST])) / len(best))
        return sum(shares) / len(shares), whole

    def _sentence(self) -> str:
        subject = self._random.choice(SUBJECTS).split()
        words = " ".join(self._random.sample(subject, self._random.randint(2, 5)))
        other = self._random.choice(self._random.choice(SUBJECTS).split())
        glue = self._random.choice(GLUE)
        return f"{glue} {words} and {other} number {self._random.randint(1, 9_999)}."

    def _asked(self) -> list[str]:
        """Return queries, half of them of words that stand together somewhere."""
        return [
            " ".join(self._random.sample(self._random.choice(SUBJECTS).split(), 1 + turn % 3))
            for turn in range(self._queries)
        ]

    async def _vectors(self, texts: Sequence[str], purpose: Purpose) -> list[Vector]:
        made: list[Vector] = []
        size = self._embedder.batch_items
        for begun in range(0, len(texts), size):
            for vector in await self._embedder.embed(texts[begun : begun + size], purpose):
                assert not isinstance(vector, str)
                made.append(vector)
        return made


async def _searched(query: str, person: int) -> float:
    """Return the milliseconds that a search takes."""
    began = time.perf_counter()
    results = await search(query, Scope(person))
    took = time.perf_counter() - began
    assert results.mode == "hybrid"
    return 1000 * took


def _fetched(cursor: psycopg.ClientCursor[Any], statement: Any, values: Any) -> float:
    """Return the milliseconds until the rows of the bare query are here."""
    began = time.perf_counter()
    cursor.execute(statement, values)
    rows = cursor.fetchall()
    took = time.perf_counter() - began
    assert rows
    return 1000 * took


def _add(
    manifest_id: int, person: int, ids: range, texts: Sequence[str], vectors: Sequence[Vector]
) -> None:
    values: dict[str, Any] = {
        "manifest": manifest_id,
        "person": person,
        "each": PER_CONVERSATION,
        "first": ids[0] // PER_CONVERSATION,
        "last": ids[-1] // PER_CONVERSATION,
        "ids": array(ids),
        "texts": list(texts),
        "digests": array(digest(text) for text in texts),
    }
    with unguarded() as cursor:
        cursor.execute(_CONVERSATIONS, values)
        cursor.execute(_MESSAGES, values)
        cursor.execute(
            WORDS_SQL.format(said="turns_message", which=f"m.id BETWEEN {ids[0]} AND {ids[-1]}")
        )
        statements.run(_EMBEDDINGS, {**values, "vectors": VectorArray(vectors)})


def _settle() -> None:
    """Do what autovacuum would have done some time after such a fill."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        for table in _TABLES:
            cursor.execute(f"VACUUM (ANALYZE) {table}")
        cursor.execute("CHECKPOINT")
        cursor.execute("SET statement_timeout = DEFAULT")


def _session(url: str) -> psycopg.Connection[Any]:
    session = psycopg.connect(url, autocommit=True)
    session.execute("SELECT '[1]'::vector")  # the extension's settings come with it
    session.execute("SET hnsw.iterative_scan = relaxed_order")
    session.execute(f"SET hnsw.ef_search = {bounds.INDEX_SEARCH_WIDTH}")
    session.execute(f"SET hnsw.max_scan_tuples = {bounds.INDEX_SCAN_TUPLES}")
    return session


def _by_hand(
    manifest: Manifest, person: int, query: str, vector: Vector, *, by_index: bool
) -> tuple[str, dict[str, Any]]:
    kind = f"vector({manifest.dimensions})"
    distance = (
        f"(vector::{kind}) <=> %(vector)s::{kind}" if by_index else "vector <=> %(vector)s"
    )
    return _BARE.format(distance=distance, manifest=manifest.pk), {
        "query": query,
        "mine": f"'person {person}'",
        "person": person,
        "vector": f"[{','.join(map(repr, vector.tolist()))}]",
    }


def _nearest(manifest: Manifest, person: int, vector: Vector, *, by_index: bool) -> list[int]:
    """Return the nearest messages by the product's own statement, with or without the index."""
    scope = Scope(person)
    vectors = Vectors.BY_INDEX if by_index else Vectors.EACH
    rows = ranking.rows_of(
        f"WITH {candidates.by_vectors(scope, manifest, vectors)} "
        "SELECT message_id FROM nearest ORDER BY distance, message_id DESC",
        {**scope.values, "vector": VectorBytes(vector)},
    )
    return [pk for (pk,) in rows]


def _told(times: Sequence[float]) -> str:
    return f"{median(times):.1f} ms, {percentile(times, 0.95):.1f} ms"
