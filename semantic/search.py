"""Finding what was said, by its words and by its meaning, among one person's messages.

One embedding of the query, then one short statement. Every condition on whose messages these
are stands in the SQL (semantic/ranking.py); nothing is sorted out afterwards. Where vectors
cannot be compared, words alone are, and the answer says so.
"""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog
from django.db import DatabaseError

from recovery.bounds import storable
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.executor import in_thread
from semantic import bounds, ranking
from semantic.candidates import Scope
from semantic.embedders import factory
from semantic.embedders.embedder import Embedder, Purpose, Vector
from semantic.embedders.wordllama import WordLlamaEmbedder
from semantic.excerpts import excerpt
from semantic.models import Manifest
from semantic.ranking import Found, Ranked

__all__ = ["Hit", "Mode", "Results", "Scope", "query_of", "search"]

log = structlog.get_logger(__name__)

# The manifest may be another than the last time, and give way once more meanwhile.
TRIES: Final = 3
# As telephones write them.
_QUOTES: Final = str.maketrans(dict.fromkeys("“”„‟«»", '"'))
# The parser of queries takes no address with its scheme for one. Dashes behind it do not begin
# a word.
_SCHEMES: Final = re.compile(r"\b(?:[a-z][a-z0-9+.-]*://-*)+", re.IGNORECASE)
# The parser takes each dash that is not within a word for an exclusion: a spaced one, a list's,
# an option's, and the many of a ruled line, which it refuses. People mean the word right behind
# one dash. Words end for it at any of these signs as well. Signs at the end of one that is
# excluded are none of it.
_TERMS: Final = re.compile(
    r"""(?P<phrase>(?:(?<!\S)-)?"[^"]*(?:"|\Z))
    | (?P<excluded>(?<!\S)-\w(?:[^\s"]*[^\s!-/:-@\[-`{-~])?)[^\s"]*
    | (?<![^\s"!&|()<])-+""",
    re.VERBOSE,
)
# Of such a word the parser would exclude the beginning, and ask for the rest.
_SEVERAL: Final = re.compile(r"[:!&|()<]")
# What has no words, and means nothing by itself.
_NOTHING: Final = f" {string.punctuation}"
_EXCLUDES: Final = re.compile(r'(?<!\S)-[\w"]')
_OR: Final = re.compile(r"\bor\b", re.IGNORECASE)
# Of a query that may be searched, whose phrases stand between blanks.
_TERM: Final = re.compile(r'-?"[^"]*"?|[!&|()<]+|[^\s!&|()<]+')
_LETTER: Final = re.compile(r"[^\W_]")

EmbedderFor = Callable[[Manifest], Embedder | None]


class Mode(StrEnum):
    """By what was searched."""

    HYBRID = "hybrid"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that was found, and the part of it that shows why."""

    found: Found
    excerpt: str

    @property
    def message_id(self) -> int:
        """Whose words these are."""
        return self.found.message_id

    @property
    def conversation_id(self) -> int:
        """Where it was said."""
        return self.found.conversation_id

    @property
    def score(self) -> float:
        """Its reciprocal ranks, added."""
        return self.found.score


@dataclass(frozen=True, slots=True)
class Results:
    """What was found, best first; `truncated` where there was more than was asked for."""

    mode: Mode
    hits: tuple[Hit, ...]
    truncated: bool = False


def query_of(text: str) -> str:
    """Return what to look for, as it may be searched, and as PostgreSQL reads it.

    Phrases are in plain quotes. An exclusion is a dash at the beginning of a word, up to the
    next blank or quote, or of a phrase; no other dashes are left but those within words.
    Addresses are without their scheme, and blanks of any kind are one space: which of them are
    blanks for PostgreSQL depends on its locale. On both sides of an "or" something is looked
    for, wherever something is excluded.

    Raises:
        Refused: there are only signs in it, or characters that no stored text can have.
        BoundExceeded: it is longer than `bounds.QUERY_MAX_BYTES`.
    """
    if storable(text) != text:
        raise Refused(ErrorCode.INVALID_TEXT)
    if len(text.strip().encode()) > bounds.QUERY_MAX_BYTES:
        raise BoundExceeded(ErrorCode.SEARCH_QUERY_TOO_LONG)
    query = text.translate(_QUOTES)
    if "://" in query:
        query = _SCHEMES.sub(_no_scheme, query)
    query = " ".join(_TERMS.sub(_term, query).split())
    if "-" in query and _EXCLUDES.search(query) and _OR.search(query):
        query = _joined(query)
    if not query.strip(_NOTHING):
        raise Refused(ErrorCode.EMPTY_QUERY)
    return query


def _no_scheme(found: re.Match[str]) -> str:
    """Return a space, or nothing where a dash before it is for the address."""
    return "" if found.string.endswith("-", 0, found.start()) else " "


def _term(found: re.Match[str]) -> str:
    """Return a phrase and what is excluded, each by itself; a space for any other dashes."""
    excluded = found["excluded"]
    if excluded and _SEVERAL.search(excluded):
        return f' -"{excluded[1:]}" '
    return f" {found['phrase'] or excluded or ''} "


def _joined(query: str) -> str:
    """Return `query` without an "or" where nothing is looked for on one of its sides.

    It would ask for all messages but those excluded. The index knows no such thing, and the
    query would find nothing.
    """
    sides: list[list[str]] = [[]]
    for term in _TERM.findall(query):
        if _OR.fullmatch(term):
            sides.append([])
        else:
            sides[-1].append(term)
    kept = sides[:1]
    for side in sides[1:]:
        if _looks(kept[-1]) and _looks(side):
            kept.append(side)
        else:
            kept[-1].extend(side)
    return " or ".join(" ".join(side) for side in kept)


def _looks(side: Iterable[str]) -> bool:
    return any(not term.startswith("-") and _LETTER.search(term) for term in side)


async def search(
    text: str,
    scope: Scope,
    *,
    limit: int = bounds.HITS_MAX,
    embedder_for: EmbedderFor = factory.for_manifest,
) -> Results:
    """Return what the person's messages within `scope` say of `text`, at most `limit` of them.

    The same scope with `before_message_id` gives the same answer, whatever is said meanwhile.

    Raises:
        Refused: nothing to look for, text that cannot be stored, a query that the database
            cannot read (`invalid_request`), or a conversation that is not the person's
            (`scope_refused`).
        BoundExceeded: the query is too long.
    """
    try:
        return await _search(query_of(text), scope, limit=limit, embedder_for=embedder_for)
    except DatabaseError as failed:
        if not _is_unreadable(failed):
            raise
        log.warning("search.refused", error_code=ErrorCode.INVALID_REQUEST.value)
        raise Refused(ErrorCode.INVALID_REQUEST) from None


def _is_unreadable(failed: DatabaseError) -> bool:
    """Whether the database could not read the query: its parsers say so of what is too deep
    (XX000, "tsquery stack too small") or too long (class 54)."""
    state = getattr(failed.__cause__, "sqlstate", None) or ""
    return state == "XX000" or state.startswith("54")


async def _search(
    query: str, scope: Scope, *, limit: int, embedder_for: EmbedderFor
) -> Results:
    limit = max(1, min(limit, bounds.HITS_MAX))
    manifest = _Answering.last
    for _ in range(TRIES):
        vector = None if manifest is None else await _embedded(query, manifest, embedder_for)
        found = await in_thread(_found, query, scope, manifest, vector, limit=limit)
        if isinstance(found, Results):
            return found
        manifest = _Answering.last = found.manifest
    # swapped again and again: words do not depend on a manifest
    return await in_thread(_by_words, query, scope, limit=limit)


class _Answering:
    """The manifest that answered last in this process: most likely the one that still does, so
    the query is embedded before the database is asked. What it says then decides."""

    last: Manifest | None = None
    # What looks words up for a manifest, once its table is here: (by whom found, of what, what)
    table: tuple[EmbedderFor, int, WordLlamaEmbedder] | None = None


@dataclass(frozen=True, slots=True)
class _Another:
    """Nothing was found: it is this manifest that answers."""

    manifest: Manifest | None


def _found(
    query: str, scope: Scope, manifest: Manifest | None, vector: Vector | None, *, limit: int
) -> Results | _Another:
    """Return what was found, if it is `manifest` that answers.

    Raises:
        Refused: the conversation is not the person's.
    """
    if manifest is None or vector is None:
        ranked = ranking.by_words(query, scope, limit=limit + 1)
    else:
        ranked = ranking.by_both(query, scope, manifest, vector, limit=limit + 1)
    if ranked.is_theirs and ranked.manifest_id != (manifest and manifest.pk):
        return _Another(Manifest.objects.filter(state="active").first())
    return _results(ranked, query, limit)


def _by_words(query: str, scope: Scope, *, limit: int) -> Results:
    return _results(ranking.by_words(query, scope, limit=limit + 1), query, limit)


def _results(ranked: Ranked, query: str, limit: int) -> Results:
    if not ranked.is_theirs:
        raise Refused(ErrorCode.SCOPE_REFUSED)
    return Results(
        Mode.HYBRID if ranked.compared else Mode.TEXT,
        tuple(Hit(found, excerpt(found.text, query)) for found in ranked.found[:limit]),
        truncated=len(ranked.found) > limit,
    )


async def _embedded(query: str, manifest: Manifest, embedder_for: EmbedderFor) -> Vector | None:
    """Return the vector to compare with, None where words have to do."""
    looked_up = _looked_up(query, manifest, embedder_for)
    if looked_up is not None:
        return looked_up
    embedder = embedder_for(manifest)
    if embedder is None:
        return None
    try:
        async with asyncio.timeout(bounds.QUERY_TIMEOUT_SECONDS):
            (vector,) = await embedder.embed([query], Purpose.QUERY)
    except TimeoutError:
        log.warning("search.text_only", error_code=ErrorCode.PROVIDER_TIMEOUT.value)
        return None
    except ProviderFailed as failed:
        log.warning("search.text_only", error_code=failed.code.value)
        return None
    if isinstance(embedder, WordLlamaEmbedder):
        _Answering.table = (embedder_for, manifest.pk, embedder)
    return None if isinstance(vector, ErrorCode) else vector


def _looked_up(query: str, manifest: Manifest, embedder_for: EmbedderFor) -> Vector | None:
    """Return the vector of a query whose words are only looked up, None where it takes more.

    That is done in some 100 microseconds. Going to the embedder's thread takes longer, and
    waits there for whatever is being derived.
    """
    if _Answering.table is None or _Answering.table[:2] != (embedder_for, manifest.pk):
        return None
    return _Answering.table[2].looked_up(query, Purpose.QUERY)
