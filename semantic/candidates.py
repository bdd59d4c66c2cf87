"""Which messages a search ranks, as lists in SQL: those that have its words, and the nearest.

Both are lists of one person's messages, and of nobody else's. Words are met through the
person's own entry in the index (`semantic/models/words.py`), vectors through (manifest,
person), or, for a person who has very many, through HNSW, which goes on until it has met enough
of theirs. Either way it does not matter how much others have said.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

from semantic import bounds
from semantic.models import Manifest

_QUERY: Final = "websearch_to_tsquery('simple', %(query)s)"
# A phrase needs places of words, which are not kept (they would double the index): its words
# are looked for, and the phrase in the texts that have them. Nothing where only exclusions are.
_WORDS: Final = """CASE WHEN querytree({query}) NOT IN ('', 'T')
    THEN regexp_replace({said}, '<(-|\\d+)>', '&', 'g')::tsquery END"""
_SAID: Final = "{query}::text"
# The words of an excluded phrase may well stand in a text without it: from the index an entry
# is excluded that there is not, and the texts are looked at.
_SAID_BUT_PHRASES: Final = r"""regexp_replace({query}::text,
    '!+\( ''(?:[^'']|'''')*''(?: <(?:-|\d+)> ''(?:[^'']|'''')*'')+ \)', '!''person ''', 'g')"""
# What a function in FROM makes of the values alone is worked out once, when it is planned.
_MET: Final = """SELECT w.message_id, {rank} AS rank
        FROM semantic_messagewords w, CAST({words} AS tsquery) AS q (words)
        WHERE w.words @@ (q.words && %(own)s::tsquery) AND {within}
        ORDER BY rank DESC, w.message_id DESC LIMIT {looked_at}"""
_WORDED: Final = """worded AS MATERIALIZED (
    SELECT b.message_id, row_number() OVER (ORDER BY b.rank DESC, b.message_id DESC) AS place
    FROM ({met}) AS b {narrowed})"""
_NARROWED: Final = "{joins} ORDER BY b.rank DESC, b.message_id DESC LIMIT {candidates}"
_PHRASE: Final = """JOIN turns_message t ON t.id = b.message_id
    AND to_tsvector('simple', t.text) @@ {query}"""
# Where no message has all the words: a word counts the more the fewer of the person's messages
# have it, and what has much less than the best is left out.
_SOME_WORDED: Final = """worded AS MATERIALIZED (
    SELECT s.message_id, s.place FROM (SELECT b.message_id,
            row_number() OVER (ORDER BY b.rank DESC, b.message_id DESC) AS place,
            b.rank >= {share} * max(b.rank) OVER () AS is_near_the_best
        FROM ({met}) AS b {joins}) AS s
    WHERE s.is_near_the_best ORDER BY s.place LIMIT {candidates})"""
_WEIGHT: Final = """(SELECT sum(x.weight) FROM unnest(%(each)s::text[], %(weights)s::float8[])
    AS x (word, weight) WHERE w.words @@ x.word::tsquery)"""
# Quoted as a tsquery is written, the longest first.
_COUNTS: Final = r"""SELECT a.word, (SELECT count(*) FROM (SELECT FROM semantic_messagewords w
        {joins} WHERE w.words @@ (a.word::tsquery && %(own)s::tsquery) AND {within}
        LIMIT {most}) AS met)
    FROM (SELECT '''' || replace(replace(l.word, '\', '\\'), '''', '''''') || '''' AS word
        FROM unnest(tsvector_to_array(to_tsvector('simple', %(query)s))) AS l (word)
        ORDER BY length(l.word) DESC, l.word LIMIT {words}) AS a"""
# What ended after it was asked had not been said by then, whatever its id. It must not take up
# a place either: the scores would tell of it.
_BY_THEN: Final = """JOIN turns_message s ON s.id = {list}.message_id
    AND s.finished_at <= {asked_at}"""
_ASKED_AT: Final = """coalesce((SELECT a.created_at FROM turns_message a
        JOIN turns_conversation o ON o.id = a.conversation_id
        WHERE a.id = %(before)s AND o.owner_id = %(person)s), 'infinity')"""
# The manifest's number is part of the text, as it is of the index that HNSW goes by.
_NEAREST: Final = """nearest AS MATERIALIZED (
    SELECT e.message_id, e.digest, {distance} AS distance FROM semantic_embedding e
    WHERE {gate} AND e.manifest_id = {manifest} AND {within}
    ORDER BY {distance}{ties} LIMIT {looked_at}),
near AS (SELECT n.message_id, n.digest, 1 - n.distance AS similarity,
        row_number() OVER (ORDER BY n.distance, n.message_id DESC) AS place
    FROM nearest n {narrowed} WHERE n.distance <= 1 - {similarity_min}
    ORDER BY n.distance, n.message_id DESC LIMIT {candidates})"""
_FAR: Final = """nearest AS (SELECT WHERE false),
near AS (SELECT 0::bigint AS message_id, '' AS digest, 0::float8 AS similarity,
    0::bigint AS place WHERE false)"""
# Asked before the first vector is looked at.
_IS_FEW: Final = "NOT (SELECT is_large FROM ground)"
# HNSW goes on until it has met enough of what is asked for, or gives up. For this statement.
_LOOKS_AROUND: Final = """(SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true)
    || set_config('hnsw.ef_search', '{width}', true)
    || set_config('hnsw.max_scan_tuples', '{tuples}', true)) <> ''"""
# The parser of queries takes the beginning of such a word for the operator: one letter that is
# not ASCII, or a sign, and it is over ("orçamento", "or.example.org").
_NO_OR: Final = re.compile(
    r'"[^"]*"?|(?<![^\s!&|()<])(?P<or>or)(?=[^\s\w"!&|()<-]|[^\x00-\x7f])', re.IGNORECASE
)
# Of the longest words of a query so many are counted, and so many of the rarest looked for.
SOME_WORDS_LOOKED_AT: Final = 16
SOME_WORDS: Final = 6
# A word in more messages is too common to tell. Counting stops there.
SOME_WORDS_MESSAGES: Final = 500
# What has less than this share of what the best has is not a hit.
SOME_WORDS_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose messages are searched: all of theirs, or one conversation; and how far up.

    Of a person's messages only those count that were there before `before_message_id` was
    asked: what is said or ends later is not found. `asked_at` says when that was where it was
    no message that asked.
    """

    person_id: int
    conversation_id: int | None = None
    before_message_id: int | None = None
    asked_at: datetime.datetime | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Return the parameters of a condition on messages, those that it has."""
        values = {
            "person": self.person_id,
            "conversation": self.conversation_id,
            "before": self.before_message_id,
            "asked_at": self.asked_at,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def outline(self) -> Scope:
        """Return nobody's scope of the same conditions: the same SQL says them, whatever the
        values are."""
        return Scope(
            0,
            self.conversation_id and 0,
            self.before_message_id and 0,
            self.asked_at and datetime.datetime.min.replace(tzinfo=datetime.UTC),
        )

    def within(self, row: str) -> str:
        """Return the SQL by which `row`, that has a person, is one of these messages."""
        conditions = [f"{row}.person_id = %(person)s"]
        if self.conversation_id is not None:
            conditions.append(f"{row}.conversation_id = %(conversation)s")
        if self.before_message_id is not None:
            conditions.append(f"{row}.message_id < %(before)s")
        return " AND ".join(conditions)


@dataclass(frozen=True, slots=True)
class Some:
    """Words of which any will do, as the server quotes them, and what each counts."""

    words: tuple[str, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, counted: Iterable[tuple[str, int]]) -> Self | None:
        """Return the rarest of the words that are counted, None where none is rare."""
        told = sorted((n, word) for word, n in counted if 0 < n <= SOME_WORDS_MESSAGES)
        if not told:
            return None
        rarest = told[:SOME_WORDS]
        # squared: many common words must not outweigh the one that says what it is about
        return cls(tuple(word for _, word in rarest), tuple(1 / n**2 for n, _ in rarest))


class Vectors(Enum):
    """Which vectors of the person a statement compares."""

    NONE = "none"
    FEW = "each, where they are few"
    EACH = "each"
    BY_INDEX = "by index"


def values(query: str, scope: Scope, some: Some | None = None) -> dict[str, Any]:
    """Return the values of the list by words."""
    said: dict[str, Any] = {
        **scope.values,
        "query": _NO_OR.sub(_a_word, query),
        # beside the words, the person's own entry (semantic/models/messages.py)
        "own": f"'person {scope.person_id}'",
    }
    if some is not None:
        said |= {
            "some": " | ".join(some.words),
            "each": list(some.words),
            "weights": list(some.weights),
        }
    return said


def _a_word(found: re.Match[str]) -> str:
    """Return a phrase as it is. Behind the sign an "or" is a word, and the sign none of it."""
    return f"'{found['or']}" if found["or"] else found[0]


def counts(query: str, scope: Scope) -> tuple[str, dict[str, Any]]:
    """Return the statement, with its values, that says of the words of `query` in how many of
    these messages each is, as far as that matters."""
    statement = _COUNTS.format(
        joins=_by_then(scope, "w"),
        within=scope.within("w"),
        most=SOME_WORDS_MESSAGES + 1,
        words=SOME_WORDS_LOOKED_AT,
    )
    return statement, values(query, scope)


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
        looked_at=bounds.CANDIDATES + _late(scope),
        candidates=bounds.CANDIDATES,
        similarity_min=bounds.SIMILARITY_MIN,
    )


def by_words(scope: Scope, *, is_some: bool, has_phrase: bool) -> str:
    """Return the list `worded` of the statement: of what has all the words, or `is_some`."""
    then = _by_then(scope, "b")
    if is_some:
        words, rank = "%(some)s", _WEIGHT
        looked_at = SOME_WORDS * SOME_WORDS_MESSAGES
    else:
        said = (_SAID_BUT_PHRASES if has_phrase else _SAID).format(query=_QUERY)
        words = _WORDS.format(query=_QUERY, said=said)
        rank = "ts_rank(w.words, q.words, 1)"
        looked_at = bounds.PHRASE_CANDIDATES if has_phrase else bounds.CANDIDATES
    looked_at += _late(scope)
    met = _MET.format(rank=rank, words=words, within=scope.within("w"), looked_at=looked_at)
    if is_some:
        return _SOME_WORDED.format(
            met=met, joins=then, share=SOME_WORDS_SHARE, candidates=bounds.CANDIDATES
        )
    joins = f"{_PHRASE.format(query=_QUERY) if has_phrase else ''} {then}".strip()
    narrowed = joins and _NARROWED.format(joins=joins, candidates=bounds.CANDIDATES)
    return _WORDED.format(met=met, narrowed=narrowed)


def _late(scope: Scope) -> int:
    """Return how many more are looked at, as they may have ended after it was asked."""
    is_bounded = scope.asked_at is not None or scope.before_message_id is not None
    return bounds.LATE_CANDIDATES if is_bounded else 0


def _by_then(scope: Scope, candidates: str) -> str:
    if scope.asked_at is not None:
        return _BY_THEN.format(list=candidates, asked_at="%(asked_at)s")
    if scope.before_message_id is not None:
        return _BY_THEN.format(list=candidates, asked_at=_ASKED_AT)
    return ""
