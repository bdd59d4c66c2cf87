"""`search_history`: look for words in the earlier messages of this conversation."""

from __future__ import annotations

import json
from typing import Annotated, Final

from django.contrib.postgres.search import SearchQuery, SearchRank, SearchVector
from django.db import DatabaseError
from django.db.models import Q
from pydantic import Field

from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode
from turns.models import Message
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed

QUERY_MAX_CHARS: Final = 256
HITS_MAX: Final = 10
EXCERPT_MAX_BYTES: Final = 800
# Stands where an excerpt leaves something out.
CUT_MARK: Final = "…"
# The newest messages of the conversation that are looked through.
SEARCHED_MESSAGES: Final = 2_000
# How much of an excerpt stands before the first word found.
LEAD_CHARS: Final = 120


class SearchHistory(Arguments):
    """What to look for."""

    query: Annotated[str, Field(min_length=1, max_length=QUERY_MAX_CHARS)]


def search_history(invocation: Invocation[SearchHistory]) -> str:
    """Return the best matching earlier messages of the call's own conversation, as JSON, and
    whether there are more."""
    query = invocation.arguments.query
    newest = (
        Message.objects.filter(
            conversation_id=invocation.conversation_id,
            conversation__owner_id=invocation.owner_id,
            pk__lt=invocation.before_message_id,
        )
        .order_by("-pk")
        .values("pk")[:SEARCHED_MESSAGES]
    )
    # "simple" knows no language, so it treats all alike
    words = SearchQuery(query, config="simple", search_type="websearch")
    vector = SearchVector("text", config="simple")
    found = (
        Message.objects.filter(pk__in=newest)
        .annotate(words=vector, rank=SearchRank(vector, words))
        .filter(Q(words=words) | Q(text__icontains=query))
        .order_by("-rank", "-pk")[: HITS_MAX + 1]
    )
    try:
        hits = [
            {
                "message_id": str(message.pk),
                "role": message.role,
                "created_at": message.created_at.isoformat(timespec="seconds"),
                "excerpt": excerpt(message.text, query),
            }
            for message in found
        ]
    except DatabaseError:
        raise ToolFailed(ErrorCode.LEXICAL_UNAVAILABLE) from None
    told = {"hits": hits[:HITS_MAX], "truncated": len(hits) > HITS_MAX}
    return json.dumps(told, ensure_ascii=False)


def excerpt(text: str, query: str) -> str:
    """Return the part of `text` around the first word of `query` in it, with a mark where
    something is left out."""
    folded = text.casefold()
    places = [folded.find(word) for word in query.casefold().split()]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, first - LEAD_CHARS)
    part = cut_utf8(text[start:], EXCERPT_MAX_BYTES - 2 * len(CUT_MARK.encode()))
    before = CUT_MARK if start else ""
    return before + part + (CUT_MARK if start + len(part) < len(text) else "")


TOOL: Final = Tool(
    name="search_history",
    description=(
        "Search the earlier messages of this conversation for words or a phrase. "
        "Use it when the person refers to something said before that is not in view."
    ),
    arguments=SearchHistory,
    effect=Effect.READ,
    call=search_history,
    runs="in_database_thread",
    timeout_seconds=20,
)
