"""What the database is asked by a search: one short statement, most of the time.

It looks at the ground (whether the conversation is the person's, which manifest answers, and
whether there are few enough vectors to compare each) and ranks. A list by words and a list by
vectors each give a message the reciprocal of its place, and the sums decide.

The lists are made of one person's messages alone (`semantic/candidates.py`). Statements are
planned with their values: a plan for the average person would fit nobody.
"""

from __future__ import annotations

import datetime
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from django.db import InterfaceError, OperationalError, connection

from recovery import statements
from semantic import bounds, candidates
from semantic.candidates import Scope, Some, Vectors
from semantic.embedders.embedder import Vector
from semantic.models import Manifest
from semantic.vectors import VectorBytes


class Found(NamedTuple):
    """A message of the person, and why it was found.

    `has_words`: all that the query asks for stands in it; `has_some_words`: no message has all,
    and it has some of them. `similarity` is the cosine of its vector to the query's, None where
    it is not among the nearest.
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
    has_some_words: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """Messages, best first, and what they were looked for in.

    `manifest_id` is that of the manifest that answers. `compared` counts the nearest vectors
    that were looked at, also those of what ended too late to be ranked; `is_large` says that
    there are too many to compare each, so none was.
    """

    is_theirs: bool
    manifest_id: int | None
    is_large: bool
    compared: int
    found: tuple[Found, ...]


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
# Put in order before the texts are fetched: then only those of the best are.
_RANK: Final = """WITH {lists}
SELECT g.*, (SELECT count(*) FROM nearest), h.* FROM ground g LEFT JOIN LATERAL (
    SELECT m.id, m.conversation_id, m.role, m.created_at, m.digest, m.text,
        r.score, r.has_words, r.similarity
    FROM (SELECT coalesce(w.message_id, n.message_id) AS message_id,
            coalesce(1::float8 / ({offset} + w.place), 0)
                + coalesce(1::float8 / ({offset} + n.place), 0) AS score,
            w.message_id IS NOT NULL AS has_words, n.similarity, n.digest
        FROM worded w {join} JOIN near n ON n.message_id = w.message_id
        ORDER BY score DESC, has_words DESC, message_id DESC) AS r
        JOIN turns_message m ON m.id = r.message_id
            AND (r.digest IS NULL OR r.digest = m.digest)
    WHERE m.state <> 'streaming'
    ORDER BY r.score DESC, r.has_words DESC, r.message_id DESC LIMIT {limit}) AS h ON true"""
# Who quotes a phrase or excludes a word gets nothing else: vectors then only help to order.
_OPERATORS: Final = re.compile(r'"|(?<!\S)-\w')
# Who writes so has said what will do.
_MEANT: Final = re.compile(rf"{_OPERATORS.pattern}|(?<!\S)or(?!\S)", re.IGNORECASE)


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
    """Return the best `limit` messages that have the words, or some of them if none has all."""

    def ranked(some: Some | None) -> Ranked:
        return _ranked(*asked(query, scope, some=some, limit=limit), some)

    return _or_some(query, scope, ranked)


def by_both(
    query: str, scope: Scope, manifest: Manifest, vector: Vector, *, limit: int
) -> Ranked:
    """Return the best `limit` messages by words and by vectors of `manifest`.

    They are good for something only where that manifest still answers.
    """
    given = {"vector": VectorBytes(vector)}

    def by(vectors: Vectors, some: Some | None) -> Ranked:
        statement, values = asked(query, scope, manifest, vectors, some=some, limit=limit)
        return _ranked(statement, {**values, **given}, some)

    def ranked(some: Some | None) -> Ranked:
        if not _Large.has(manifest, scope):
            few = by(Vectors.FEW, some)
            if not few.is_large or few.manifest_id != manifest.pk:
                return few
            _Large.keep(manifest, scope)
        best = by(Vectors.BY_INDEX, some)
        if best.compared >= bounds.CANDIDATES or best.manifest_id != manifest.pk:
            return best
        # It gave up before it had met enough of this person's, or there are few by now.
        _Large.forget(manifest, scope)
        return by(Vectors.EACH, some)

    return _or_some(query, scope, ranked)


def _or_some(query: str, scope: Scope, ranked: Callable[[Some | None], Ranked]) -> Ranked:
    """Return what has all the words, or, where nothing has, what has some of them."""
    best = ranked(None)
    # the first by words is always among the best
    has_all = any(one.has_words for one in best.found)
    if has_all or not best.is_theirs or len(query.split()) == 1 or _MEANT.search(query):
        return best
    some = Some.of(rows_of(*candidates.counts(query, scope)))
    return best if some is None else ranked(some)


def asked(
    query: str,
    scope: Scope,
    manifest: Manifest | None = None,
    vectors: Vectors = Vectors.NONE,
    *,
    some: Some | None = None,
    limit: int,
) -> tuple[str, dict[str, Any]]:
    """Return the statement that ranks, and its values but `vector`."""
    statement = _written(
        scope.outline,
        manifest,
        vectors,
        is_some=some is not None,
        has_phrase='"' in query,
        must_fit=_OPERATORS.search(query) is not None,
        limit=limit,
    )
    return statement, {**candidates.values(query, scope, some), "planned": True}


@lru_cache(maxsize=256)
def _written(
    scope: Scope,
    manifest: Manifest | None,
    vectors: Vectors,
    *,
    is_some: bool,
    has_phrase: bool,
    must_fit: bool,
    limit: int,
) -> str:
    """Return the text of the statement for all scopes of this outline. There are few of them,
    and to write one takes longer than to bind its values."""
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
    return _RANK.format(
        lists=", ".join(
            [
                ground,
                candidates.by_words(scope, is_some=is_some, has_phrase=has_phrase),
                candidates.by_vectors(scope, manifest, vectors),
            ]
        ),
        join="LEFT" if must_fit else "FULL",
        offset=bounds.RECIPROCAL_RANK_OFFSET,
        limit=limit,
    )


def _ranked(statement: str, values: Mapping[str, Any], some: Some | None) -> Ranked:
    rows = rows_of(statement, values)
    is_theirs, manifest_id, is_large, compared, *_ = rows[0]
    found = [Found(*row[4:]) for row in rows if row[4] is not None]
    # no join promises to keep the order
    found.sort(key=lambda one: (one.score, one.has_words, one.message_id), reverse=True)
    if some is not None:
        found = [one._replace(has_words=False, has_some_words=one.has_words) for one in found]
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
