"""What the database is asked by a search, in two short statements.

The first looks at the ground: whether the conversation is the person's, which manifest answers,
and whether there are few enough vectors to compare each. The second ranks. A list by words and
a list by vectors each give a message the reciprocal of its place, and the sums decide.

Words are met through the person's own entry in the index (`semantic/models/words.py`), vectors
through (manifest, person), or, for a person who has very many, through HNSW, which goes on
until it has met enough of theirs. Either way it does not matter how much others have said.
Statements are planned with their values: a plan for the average person would fit nobody.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connection, transaction

from semantic import bounds
from semantic.embedders.embedder import Vector
from semantic.models import Manifest

# Above every id there can be.
NO_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose messages are searched: all of theirs, or one conversation; and how far up.

    Of a person's messages only those count that were there before `before_message_id` was
    asked: what is said or ends later is not found.
    """

    person_id: int
    conversation_id: int | None = None
    before_message_id: int | None = None

    @property
    def values(self) -> dict[str, int | None]:
        """Return the parameters of every statement here."""
        return {
            "person": self.person_id,
            "conversation": self.conversation_id,
            "before": self.before_message_id or NO_END,
        }


@dataclass(frozen=True, slots=True)
class Ground:
    """What there is to search in, and for. `vectors` counts no further than one above
    `EXACT_MAX_VECTORS`; `words` is the query as a `tsquery`, empty where it names none."""

    words: str
    is_theirs: bool
    manifest: Manifest | None
    vectors: int


@dataclass(frozen=True, slots=True)
class Found:
    """A message of the person, and why it was found.

    `has_words`: all that the query asks for stands in it. `similarity` is the cosine of its
    vector to the query's, None where it is not among the nearest.
    """

    message_id: int
    conversation_id: int
    role: str
    created_at: datetime.datetime
    digest: str
    text: str
    score: float
    has_words: bool
    similarity: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """Messages, best first, and whether vectors were compared for it."""

    found: tuple[Found, ...]
    compared: bool


_MANIFEST: Final = tuple(field.attname for field in Manifest._meta.concrete_fields)
_HERE: Final = "AND e.conversation_id = %(conversation)s"
_LOOK: Final = """
    SELECT CASE WHEN querytree(q) IN ('', 'T') THEN ''
            ELSE regexp_replace(q::text, '<(-|\\d+)>', '&', 'g') END,
        {theirs}, (SELECT count(*) FROM (
            SELECT FROM semantic_embedding e
            WHERE e.manifest_id = p.id AND e.person_id = %(person)s {here}
            LIMIT {most}) AS v), {columns}
    FROM websearch_to_tsquery('simple', %(query)s) AS q
        LEFT JOIN semantic_manifest p ON p.state = 'active'
"""
_IS_THEIRS: Final = """EXISTS (SELECT FROM turns_conversation c
        WHERE c.id = %(conversation)s AND c.owner_id = %(person)s)"""


def look(query: str, scope: Scope) -> Ground:
    """Return what there is to search in, and for."""
    here = scope.conversation_id is not None
    statement = _LOOK.format(
        theirs=_IS_THEIRS if here else "true",
        here=_HERE if here else "",
        most=bounds.EXACT_MAX_VECTORS + 1,
        columns=", ".join(f"p.{column}" for column in _MANIFEST),
    )
    values = {**scope.values, "query": _SCHEME.sub("", query)}
    ((words, is_theirs, vectors, *columns),) = _rows(statement, values)
    manifest = None
    if columns[0] is not None:
        manifest = Manifest.from_db(DEFAULT_DB_ALIAS, _MANIFEST, columns)
    return Ground(words, is_theirs, manifest, vectors)


# A phrase needs places of words, which are not kept (they would double the index): its words
# are looked for, and the phrase in the texts that have them.
_BY_WORDS: Final = """
    worded AS MATERIALIZED (SELECT b.message_id,
            row_number() OVER (ORDER BY b.rank DESC, b.message_id DESC) AS place
        FROM (SELECT w.message_id, ts_rank(w.words, %(words)s::tsquery, 1) AS rank
            FROM semantic_messagewords w
            WHERE w.words @@ %(met)s::tsquery AND %(words)s <> ''
                AND w.person_id = %(person)s AND w.message_id < %(before)s {here}
            ORDER BY rank DESC, w.message_id DESC LIMIT %(looked_at)s) AS b
        {narrowed}
        ORDER BY b.rank DESC, b.message_id DESC LIMIT %(candidates)s)"""
_PHRASE: Final = """JOIN turns_message t ON t.id = b.message_id
            AND to_tsvector('simple', t.text) @@ websearch_to_tsquery('simple', %(query)s)"""
# What ended after the message `before` was asked had not been said by then, whatever its id. It
# must not take up a place either: the scores would tell of it.
_BY_THEN: Final = """JOIN turns_message s ON s.id = {list}.message_id
            AND s.finished_at <= coalesce((SELECT a.created_at FROM turns_message a
                JOIN turns_conversation o ON o.id = a.conversation_id
                WHERE a.id = %(before)s AND o.owner_id = %(person)s), 'infinity')"""
# The manifest's number is part of the text, as it is of the index that HNSW goes by.
_NEAREST: Final = """
    nearest AS MATERIALIZED (SELECT e.message_id, e.digest, {distance} AS distance
        FROM semantic_embedding e
        WHERE e.manifest_id = {manifest} AND e.person_id = %(person)s
            AND e.message_id < %(before)s {here}
        ORDER BY {distance}{ties} LIMIT %(candidates)s),
    near AS (SELECT n.message_id, n.digest, 1 - n.distance AS similarity,
            row_number() OVER (ORDER BY n.distance, n.message_id DESC) AS place
        FROM nearest n {narrowed} WHERE n.distance <= 1 - {similarity_min})"""
_FAR: Final = """
    nearest AS (SELECT),
    near AS (SELECT NULL::bigint AS message_id, NULL::text AS digest,
        NULL::float8 AS similarity, NULL::bigint AS place WHERE false)"""
_ANSWERS: Final = (
    "EXISTS (SELECT FROM semantic_manifest WHERE id = {manifest} AND state = 'active')"
)
# The parser of queries takes no address with its scheme for one.
_SCHEME: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# Who quotes a phrase or excludes a word gets nothing else: vectors then only help to order.
_OPERATORS: Final = re.compile(r'"|(?<!\S)-\w')
_RANK: Final = """
    WITH {lists}
    SELECT a.answers, a.compared, h.* FROM (SELECT {answers} AS answers,
        (SELECT count(*) FROM nearest) AS compared) AS a
    LEFT JOIN LATERAL (
        SELECT m.id, m.conversation_id, m.role, m.created_at, m.digest, m.text,
            (coalesce(1.0 / ({offset} + w.place), 0)
                + coalesce(1.0 / ({offset} + n.place), 0))::float8 AS score,
            w.message_id IS NOT NULL AS has_words, n.similarity
        FROM worded w {join} JOIN near n ON n.message_id = w.message_id
            JOIN turns_message m ON m.id = coalesce(w.message_id, n.message_id)
                AND (n.digest IS NULL OR n.digest = m.digest)
            JOIN turns_conversation c ON c.id = m.conversation_id AND c.owner_id = %(person)s
        WHERE m.state <> 'streaming'
        ORDER BY score DESC, has_words DESC, m.id DESC LIMIT %(limit)s
    ) AS h ON true
    ORDER BY h.score DESC, h.has_words DESC, h.id DESC
"""


def answer(
    query: str, scope: Scope, manifest: Manifest | None, vector: Vector | None, *, limit: int
) -> tuple[Ground, Answer | None]:
    """Return the best `limit` messages, by words alone where there is no `vector`.

    No answer where another manifest answers than the one that `vector` is of, or where the
    scope is not the person's: then nothing was compared.
    """
    ground = look(query, scope)
    answering = ground.manifest and ground.manifest.pk
    if not ground.is_theirs or answering != (manifest and manifest.pk):
        return ground, None
    if vector is None or manifest is None or not ground.vectors:
        return ground, by_words(query, scope, ground, limit=limit)
    exactly = asked(query, ground.words, scope, manifest, literal(vector), limit=limit)
    rows = None
    if ground.vectors > bounds.EXACT_MAX_VECTORS:
        indexed = asked(
            query, ground.words, scope, manifest, literal(vector), limit=limit, by_index=True
        )
        with looking_around():
            rows = _rows(*indexed)
    # It gave up before it had met enough of this person's: then each of theirs is compared.
    if rows is None or rows[0][1] < bounds.CANDIDATES:
        rows = _rows(*exactly)
    if not rows[0][0]:  # it gave way just now
        return look(query, scope), None
    return ground, Answer(_found(rows), compared=True)


def by_words(query: str, scope: Scope, ground: Ground, *, limit: int) -> Answer:
    """Return the best `limit` messages that have the words."""
    rows = _rows(*asked(query, ground.words, scope, None, "", limit=limit))
    return Answer(_found(rows), compared=False)


def asked(
    query: str,
    words: str,
    scope: Scope,
    manifest: Manifest | None,
    vector: str,
    *,
    limit: int,
    by_index: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Return the statement that ranks, and its values; by words alone without a manifest."""
    is_phrase = '"' in query
    here = scope.conversation_id is not None
    worded = _BY_WORDS.format(
        here="AND w.conversation_id = %(conversation)s" if here else "",
        narrowed=f"{_PHRASE if is_phrase else ''} {_by_then(scope, 'b')}",
    )
    statement = _RANK.format(
        join="LEFT" if _OPERATORS.search(query) else "FULL",
        lists=f"{worded}, {by_vectors(manifest, scope, by_index=by_index)}",
        answers="true" if manifest is None else _ANSWERS.format(manifest=manifest.pk),
        offset=bounds.RECIPROCAL_RANK_OFFSET,
    )
    return statement, {
        **scope.values,
        "query": _SCHEME.sub("", query),
        "words": words,
        # beside the words, the person's own entry (semantic/models/messages.py)
        "met": f"({words}) & 'person {scope.person_id}'" if words else "",
        "vector": vector,
        "limit": limit,
        "candidates": bounds.CANDIDATES,
        "looked_at": bounds.PHRASE_CANDIDATES if is_phrase else bounds.CANDIDATES,
    }


def by_vectors(manifest: Manifest | None, scope: Scope, *, by_index: bool) -> str:
    """Return the lists `nearest` and `near` of the statement."""
    if manifest is None:
        return _FAR
    plain = "e.vector <=> %(vector)s::vector"
    kind = f"vector({manifest.dimensions})"
    return _NEAREST.format(
        # only the index's own expression leads to it, and exact comparison stays away from it
        distance=f"(e.vector::{kind}) <=> %(vector)s::{kind}" if by_index else plain,
        # one more key would keep HNSW from being asked
        ties="" if by_index else ", e.message_id DESC",
        manifest=manifest.pk,
        here="" if scope.conversation_id is None else _HERE,
        narrowed=_by_then(scope, "n"),
        similarity_min=bounds.SIMILARITY_MIN,
    )


def _by_then(scope: Scope, candidates: str) -> str:
    return "" if scope.before_message_id is None else _BY_THEN.format(list=candidates)


@contextmanager
def looking_around() -> Iterator[None]:
    """Let statements go by HNSW until it has met enough of what they ask for, or gives up."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"SET LOCAL hnsw.iterative_scan = relaxed_order;"
            f"SET LOCAL hnsw.ef_search = {bounds.INDEX_SEARCH_WIDTH};"
            f"SET LOCAL hnsw.max_scan_tuples = {bounds.INDEX_SCAN_TUPLES}"
        )
        yield


def literal(vector: Vector) -> str:
    """Return a vector as the database reads it."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def _found(rows: list[tuple[Any, ...]]) -> tuple[Found, ...]:
    return tuple(Found(*row[2:]) for row in rows if row[2] is not None)


def _rows(statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


_READ: Final = """
    SELECT m.id, m.conversation_id, m.role, m.created_at, m.digest, m.text,
        0::float8, false, NULL::float8
    FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id
    WHERE m.id = ANY(%(ids)s) AND c.owner_id = %(person)s AND m.id < %(before)s
        AND m.state <> 'streaming'
        AND (%(conversation)s::bigint IS NULL OR m.conversation_id = %(conversation)s)
"""


def read(ids: list[int], scope: Scope) -> list[Found]:
    """Return those of these messages that are within the scope, as they are now, unordered."""
    return [Found(*row) for row in _rows(_READ, {**scope.values, "ids": ids})]
