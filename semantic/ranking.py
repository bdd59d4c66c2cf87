"""What the database is asked by a search: one short statement, most of the time.

It looks at the ground (whether the conversation is the person's, which manifest answers, and
whether there are few enough vectors to compare each) and ranks. A list by words and a list by
vectors each give a message the reciprocal of its place, and the sums decide.

Words are met through the person's own entry in the index (`semantic/models/words.py`), vectors
through (manifest, person), or, for a person who has very many, through HNSW, which goes on
until it has met enough of theirs. Either way it does not matter how much others have said.
Statements are planned with their values: a plan for the average person would fit nobody.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final

import psycopg
from django.db import InterfaceError, OperationalError, connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

from recovery import statements
from semantic import bounds
from semantic.embedders.embedder import Vector
from semantic.models import Manifest


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
    def values(self) -> dict[str, int]:
        """Return the parameters of a condition on messages, those that it has."""
        values = {
            "person": self.person_id,
            "conversation": self.conversation_id,
            "before": self.before_message_id,
        }
        return {name: value for name, value in values.items() if value is not None}

    def within(self, row: str) -> str:
        """Return the SQL by which `row`, that has a person, is one of these messages."""
        conditions = [f"{row}.person_id = %(person)s"]
        if self.conversation_id is not None:
            conditions.append(f"{row}.conversation_id = %(conversation)s")
        if self.before_message_id is not None:
            conditions.append(f"{row}.message_id < %(before)s")
        return " AND ".join(conditions)


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
class Ranked:
    """Messages, best first, and what they were looked for in.

    `manifest_id` is that of the manifest that answers. `compared` counts the vectors that were
    near enough to be ranked; `is_large` says that there are too many to compare each, so none
    was.
    """

    is_theirs: bool
    manifest_id: int | None
    is_large: bool
    compared: int
    found: tuple[Found, ...]


class Vectors(Enum):
    """Which vectors of the person a statement compares."""

    NONE = "none"
    FEW = "each, where they are few"
    EACH = "each"
    BY_INDEX = "by index"


_QUERY: Final = "websearch_to_tsquery('simple', %(query)s)"
# A phrase needs places of words, which are not kept (they would double the index): its words
# are looked for, and the phrase in the texts that have them. Nothing where only exclusions are.
_WORDS: Final = """CASE WHEN querytree({query}) NOT IN ('', 'T')
    THEN regexp_replace({query}::text, '<(-|\\d+)>', '&', 'g')::tsquery END"""
_WORDED: Final = """worded AS MATERIALIZED (
    SELECT b.message_id, row_number() OVER (ORDER BY b.rank DESC, b.message_id DESC) AS place
    FROM (SELECT w.message_id, ts_rank(w.words, {words}, 1) AS rank
        FROM semantic_messagewords w
        WHERE w.words @@ ({words} && %(own)s::tsquery) AND {within}
        ORDER BY rank DESC, w.message_id DESC LIMIT {looked_at}) AS b {narrowed})"""
_NARROWED: Final = "{joins} ORDER BY b.rank DESC, b.message_id DESC LIMIT {candidates}"
_PHRASE: Final = """JOIN turns_message t ON t.id = b.message_id
    AND to_tsvector('simple', t.text) @@ {query}"""
# What ended after the message `before` was asked had not been said by then, whatever its id. It
# must not take up a place either: the scores would tell of it.
_BY_THEN: Final = """JOIN turns_message s ON s.id = {list}.message_id
    AND s.finished_at <= coalesce((SELECT a.created_at FROM turns_message a
        JOIN turns_conversation o ON o.id = a.conversation_id
        WHERE a.id = %(before)s AND o.owner_id = %(person)s), 'infinity')"""
# The manifest's number is part of the text, as it is of the index that HNSW goes by.
_NEAREST: Final = """nearest AS MATERIALIZED (
    SELECT e.message_id, e.digest, {distance} AS distance FROM semantic_embedding e
    WHERE {gate} AND e.manifest_id = {manifest} AND {within}
    ORDER BY {distance}{ties} LIMIT {candidates}),
near AS (SELECT n.message_id, n.digest, 1 - n.distance AS similarity,
        row_number() OVER (ORDER BY n.distance, n.message_id DESC) AS place
    FROM nearest n {narrowed} WHERE n.distance <= 1 - {similarity_min})"""
_FAR: Final = """nearest AS (SELECT WHERE false),
near AS (SELECT 0::bigint AS message_id, '' AS digest, 0::float8 AS similarity,
    0::bigint AS place WHERE false)"""
# Asked before the first vector is looked at.
_IS_FEW: Final = "NOT (SELECT is_large FROM ground)"
# HNSW goes on until it has met enough of what is asked for, or gives up. For this statement.
_LOOKS_AROUND: Final = """(SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true)
    || set_config('hnsw.ef_search', '{width}', true)
    || set_config('hnsw.max_scan_tuples', '{tuples}', true)) <> ''"""
_GROUND: Final = """ground AS MATERIALIZED (SELECT {is_theirs} AS is_theirs,
    (SELECT id FROM semantic_manifest WHERE state = 'active') AS manifest_id,
    {is_large} AS is_large WHERE {planned})"""
# Kept by the session, the statement is parsed once. It must be planned anew each time, and the
# server would go over to one plan for everybody were that not dear beyond measure: only while
# the value is unknown is there a second half to this.
_PLANNED: Final = """%(planned)s
    OR (SELECT count(*) FROM generate_series(1, 10000000)) > 0"""
_IS_THEIRS: Final = """EXISTS (SELECT FROM turns_conversation
    WHERE id = %(conversation)s AND owner_id = %(person)s)"""
_IS_LARGE: Final = """EXISTS (SELECT FROM semantic_embedding e
    WHERE e.manifest_id = {manifest} AND {within} OFFSET {most})"""
_RANK: Final = """WITH {lists}
SELECT g.*, (SELECT count(*) FROM nearest), h.* FROM ground g LEFT JOIN LATERAL (
    SELECT m.id, m.conversation_id, m.role, m.created_at, m.digest, m.text,
        (coalesce(1.0 / ({offset} + w.place), 0)
            + coalesce(1.0 / ({offset} + n.place), 0))::float8 AS score,
        w.message_id IS NOT NULL AS has_words, n.similarity
    FROM worded w {join} JOIN near n ON n.message_id = w.message_id
        JOIN turns_message m ON m.id = coalesce(w.message_id, n.message_id)
            AND (n.digest IS NULL OR n.digest = m.digest)
    WHERE m.state <> 'streaming'
    ORDER BY score DESC, has_words DESC, m.id DESC LIMIT {limit}) AS h ON true"""
# The parser of queries takes no address with its scheme for one.
_SCHEME: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://", re.IGNORECASE)
# Who quotes a phrase or excludes a word gets nothing else: vectors then only help to order.
_OPERATORS: Final = re.compile(r'"|(?<!\S)-\w')


class _Large:
    """Who had more vectors than are compared one by one when they searched the last time.

    The index finds the same for anybody, so being wrong costs time and nothing else.
    """

    _MOST: Final = 10_000
    _kept: ClassVar[OrderedDict[tuple[int, int, int | None], None]] = OrderedDict()

    @classmethod
    def has(cls, manifest: Manifest, scope: Scope) -> bool:
        return cls._key(manifest, scope) in cls._kept

    @classmethod
    def keep(cls, manifest: Manifest, scope: Scope) -> None:
        cls._kept[cls._key(manifest, scope)] = None
        if len(cls._kept) > cls._MOST:
            cls._kept.popitem(last=False)

    @classmethod
    def forget(cls, manifest: Manifest, scope: Scope) -> None:
        cls._kept.pop(cls._key(manifest, scope), None)

    @staticmethod
    def _key(manifest: Manifest, scope: Scope) -> tuple[int, int, int | None]:
        return manifest.pk, scope.person_id, scope.conversation_id


def by_words(query: str, scope: Scope, *, limit: int) -> Ranked:
    """Return the best `limit` messages that have the words."""
    return _ranked(*asked(query, scope, limit=limit))


def by_both(
    query: str, scope: Scope, manifest: Manifest, vector: Vector, *, limit: int
) -> Ranked:
    """Return the best `limit` messages by words and by vectors of `manifest`.

    They are good for something only where that manifest still answers.
    """

    def ranked(vectors: Vectors) -> Ranked:
        statement, values = asked(query, scope, manifest, vectors, limit=limit)
        return _ranked(statement, {**values, "vector": VectorBytes(vector)})

    if not _Large.has(manifest, scope):
        few = ranked(Vectors.FEW)
        if not few.is_large or few.manifest_id != manifest.pk:
            return few
        _Large.keep(manifest, scope)
    best = ranked(Vectors.BY_INDEX)
    if best.compared >= bounds.CANDIDATES or best.manifest_id != manifest.pk:
        return best
    # It gave up before it had met enough of this person's, or there are few by now.
    _Large.forget(manifest, scope)
    return ranked(Vectors.EACH)


def asked(
    query: str,
    scope: Scope,
    manifest: Manifest | None = None,
    vectors: Vectors = Vectors.NONE,
    *,
    limit: int,
) -> tuple[str, dict[str, Any]]:
    """Return the statement that ranks, and its values but `vector`."""
    is_large = "false"
    if manifest is not None and vectors is Vectors.FEW:
        is_large = _IS_LARGE.format(
            manifest=manifest.pk, within=scope.within("e"), most=bounds.EXACT_MAX_VECTORS
        )
    ground = _GROUND.format(
        is_theirs="true" if scope.conversation_id is None else _IS_THEIRS,
        is_large=is_large,
        planned=_PLANNED,
    )
    statement = _RANK.format(
        lists=f"{ground}, {_worded(query, scope)}, {by_vectors(scope, manifest, vectors)}",
        join="LEFT" if _OPERATORS.search(query) else "FULL",
        offset=bounds.RECIPROCAL_RANK_OFFSET,
        limit=limit,
    )
    return statement, {
        **scope.values,
        "query": _SCHEME.sub("", query),
        # beside the words, the person's own entry (semantic/models/messages.py)
        "own": f"'person {scope.person_id}'",
        "planned": True,
    }


def by_vectors(scope: Scope, manifest: Manifest | None, vectors: Vectors) -> str:
    """Return the lists `nearest` and `near` of the statement."""
    if manifest is None or vectors is Vectors.NONE:
        return _FAR
    by_index = vectors is Vectors.BY_INDEX
    plain = "e.vector <=> %(vector)s::vector"
    kind = f"vector({manifest.dimensions})"
    gates = {Vectors.FEW: _IS_FEW, Vectors.EACH: "true", Vectors.BY_INDEX: _LOOKS_AROUND}
    return _NEAREST.format(
        # only the index's own expression leads to it, and exact comparison stays away from it
        distance=f"(e.vector::{kind}) <=> %(vector)s::{kind}" if by_index else plain,
        # one more key would keep HNSW from being asked
        ties="" if by_index else ", e.message_id DESC",
        gate=gates[vectors].format(
            width=bounds.INDEX_SEARCH_WIDTH, tuples=bounds.INDEX_SCAN_TUPLES
        ),
        manifest=manifest.pk,
        within=scope.within("e"),
        narrowed=_by_then(scope, "n"),
        candidates=bounds.CANDIDATES,
        similarity_min=bounds.SIMILARITY_MIN,
    )


def _worded(query: str, scope: Scope) -> str:
    """Return the list `worded` of the statement."""
    is_phrase = '"' in query
    joins = (
        f"{_PHRASE.format(query=_QUERY) if is_phrase else ''} {_by_then(scope, 'b')}".strip()
    )
    return _WORDED.format(
        words=_WORDS.format(query=_QUERY),
        within=scope.within("w"),
        looked_at=bounds.PHRASE_CANDIDATES if is_phrase else bounds.CANDIDATES,
        narrowed=joins and _NARROWED.format(joins=joins, candidates=bounds.CANDIDATES),
    )


def _by_then(scope: Scope, candidates: str) -> str:
    return "" if scope.before_message_id is None else _BY_THEN.format(list=candidates)


class VectorBytes:
    """A parameter of type `vector`: write `%(name)s::vector`. As text it takes a tenth of the
    time of a search to write and to read."""

    __slots__ = ("data",)

    def __init__(self, vector: Vector) -> None:
        self.data = struct.pack("!HH", len(vector), 0) + vector.astype(">f4").tobytes()


class _VectorDumper(Dumper):
    """Leaves the type of the parameter to its cast."""

    format = Format.BINARY
    oid = 0

    def dump(self, obj: VectorBytes) -> bytes:
        """Return the bytes made before."""
        return obj.data


psycopg.adapters.register_dumper(VectorBytes, _VectorDumper)


def _ranked(statement: str, values: Mapping[str, Any]) -> Ranked:
    rows = rows_of(statement, values)
    is_theirs, manifest_id, is_large, compared, *_ = rows[0]
    found = [Found(*row[4:]) for row in rows if row[4] is not None]
    # no join promises to keep the order
    found.sort(key=lambda one: (one.score, one.has_words, one.message_id), reverse=True)
    return Ranked(is_theirs, manifest_id, is_large, compared, tuple(found))


def rows_of(statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a statement that reads.

    Whether the session is still there is found out by asking. Where it broke while nobody
    used it, another one is asked.
    """
    try:
        return statements.run(statement, values)
    except (OperationalError, InterfaceError):
        if connection.in_atomic_block or connection.is_usable():
            raise
        connection.close()
        return statements.run(statement, values)


_READ: Final = """
    SELECT m.id, m.conversation_id, m.role, m.created_at, m.digest, m.text,
        0::float8, false, NULL::float8
    FROM (SELECT m.*, m.id AS message_id, c.owner_id AS person_id FROM turns_message m
        JOIN turns_conversation c ON c.id = m.conversation_id) AS m
    WHERE m.id = ANY(%(ids)s) AND m.state <> 'streaming' AND {within}
"""


def read(ids: list[int], scope: Scope) -> list[Found]:
    """Return those of these messages that are within the scope, as they are now, unordered."""
    statement = _READ.format(within=scope.within("m"))
    return [Found(*row) for row in rows_of(statement, {**scope.values, "ids": ids})]
