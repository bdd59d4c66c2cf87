"""The JSON API of search (mounted under /api/v1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, cast

from django.http import HttpRequest
from ninja import Query, Router

from recovery.errors import ErrorCode, Refused
from semantic import bounds
from semantic import search as searching
from semantic.schemas import HitShape, SearchShape
from semantic.search import Scope
from turns.api import ASKED_WRONGLY
from turns.schemas import Problem

router = Router(tags=["search"])

RETRY_SECONDS: Final = 1
# How many searches of each person this process is doing.
_under_way: Final[Counter[int]] = Counter()


@router.get("/search", response={200: SearchShape, **ASKED_WRONGLY, 429: Problem})
async def search(
    request: HttpRequest,
    q: Annotated[str, Query(description=f"From 1 to {bounds.QUERY_MAX_BYTES} bytes of UTF-8.")],
) -> SearchShape:
    """Find the person's messages by words and by meaning, the best 10 first."""
    # as `config/api.py` found out
    person_id = cast(int, cast(Any, request).auth)
    with _one_of_few(person_id):
        results = await searching.search(q, Scope(person_id))
    return SearchShape(
        mode=results.mode.value,
        hits=[
            HitShape(
                message_id=str(hit.message_id),
                conversation_id=str(hit.conversation_id),
                score=round(hit.score, 6),
                excerpt=hit.excerpt,
            )
            for hit in results.hits
        ],
    )


@contextmanager
def _one_of_few(person_id: int) -> Iterator[None]:
    """Let one person's searches take a few of the process's database threads, not all.

    Raises:
        Refused: as many as are allowed are under way.
    """
    if _under_way[person_id] >= bounds.SEARCHES_PER_PERSON:
        raise Refused(ErrorCode.RATE_LIMITED, retry_after_seconds=RETRY_SECONDS)
    _under_way[person_id] += 1
    try:
        yield
    finally:
        _under_way[person_id] -= 1
        if not _under_way[person_id]:
            del _under_way[person_id]
