"""Finding what was said, by its words and by its meaning, among one person's messages.

Two short statements around one embedding of the query. Every condition on whose messages these
are stands in the SQL (semantic/ranking.py); nothing is sorted out afterwards. Where vectors
cannot be compared, words alone are, and the answer says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import structlog

from recovery.bounds import storable
from recovery.errors import BoundExceeded, ErrorCode, ProviderFailed, Refused
from recovery.executor import in_thread
from semantic import bounds, ranking
from semantic.embedders import factory
from semantic.embedders.embedder import Embedder, Purpose, Vector
from semantic.excerpts import excerpt
from semantic.models import Manifest
from semantic.ranking import Found, Ground, Scope

__all__ = ["Hit", "Mode", "Results", "Scope", "query_of", "search"]

log = structlog.get_logger(__name__)

# A manifest that gives way in the middle of a search is followed this often.
SWAPS_FOLLOWED = 2

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
    """Return what to look for, as it may be searched.

    Raises:
        Refused: there is nothing in it, or characters that no stored text can have.
        BoundExceeded: it is longer than `bounds.QUERY_MAX_BYTES`.
    """
    if storable(text) != text:
        raise Refused(ErrorCode.INVALID_TEXT)
    query = text.strip()
    if not query:
        raise Refused(ErrorCode.EMPTY_QUERY)
    if len(query.encode()) > bounds.QUERY_MAX_BYTES:
        raise BoundExceeded(ErrorCode.SEARCH_QUERY_TOO_LONG)
    return query


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
        Refused: nothing to look for, text that cannot be stored, or a conversation that is not
            the person's (`scope_refused`).
        BoundExceeded: the query is too long.
    """
    query = query_of(text)
    limit = max(1, min(limit, bounds.HITS_MAX))
    for _ in range(SWAPS_FOLLOWED):
        ground = await in_thread(ranking.look, scope)
        if not ground.is_theirs:
            raise Refused(ErrorCode.SCOPE_REFUSED)
        vector = await _embedded(query, ground, embedder_for)
        answer = await in_thread(ranking.rank, query, scope, ground, vector, limit=limit + 1)
        if answer.still_answers:
            break
    else:  # swapped again and again: words do not depend on a manifest
        vector = None
        answer = await in_thread(ranking.rank, query, scope, ground, None, limit=limit + 1)
    return Results(
        Mode.TEXT if vector is None else Mode.HYBRID,
        tuple(Hit(found, excerpt(found.text, query)) for found in answer.found[:limit]),
        truncated=len(answer.found) > limit,
    )


async def _embedded(query: str, ground: Ground, embedder_for: EmbedderFor) -> Vector | None:
    """Return the vector to compare with, None where words have to do."""
    if ground.manifest is None or not ground.vectors:
        return None
    embedder = embedder_for(ground.manifest)
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
    return None if isinstance(vector, ErrorCode) else vector
