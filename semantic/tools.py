"""`recall`: what was said earlier, by words and by meaning, and what it is worth as evidence.

It looks into the conversation of the call; into everything of the person only when it is told
to, and never into anything of anybody else. What it finds is what was there when the question
was asked. Each answer has a `ref`, by which it can be had again in the same conversation.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from django.db import DatabaseError
from django.db.models import Min
from django.utils import timezone
from pydantic import Field, model_validator

from recovery.errors import BoundExceeded, ErrorCode, Refused
from recovery.executor import in_thread
from semantic import bounds, search
from semantic.evidence import classify
from semantic.search import Results, Scope
from semantic.snapshots import Snapshot
from turns.models import Message
from turns.tools.registry import Arguments, Effect, Invocation, State, Tool, ToolFailed

TIMEOUT_SECONDS: Final = 20
# What stands in arguments for what no text can hold, as a NUL.
UNSTORABLE: Final = "\ufffd"
ANOTHER_QUERY: Final = "The ref is of another query. Give the ref alone, or the query alone."
# The host says what a message is worth. A model that says it too is not listened to.
NOT_ASKED_FOR: Final = frozenset({"classification", "classifications", "evidence"})


class Recall(Arguments):
    """What to look for and where, or an earlier answer to have again."""

    query: Annotated[
        str,
        Field(
            max_length=bounds.QUERY_MAX_BYTES,
            description="Words, a question, or a phrase in quotes. Leave it out with a ref.",
        ),
    ] = ""
    everywhere: Annotated[
        bool,
        Field(description="Look into all conversations of the person, not only this one."),
    ] = False
    limit: Annotated[int, Field(ge=1, le=bounds.HITS_MAX)] = bounds.HITS_MAX
    ref: Annotated[
        str,
        Field(
            max_length=bounds.REF_MAX_CHARS,
            description="The ref of an earlier answer in this conversation, to read it again.",
        ),
    ] = ""

    @model_validator(mode="before")
    @classmethod
    def _host_decides(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in NOT_ASKED_FOR}


async def recall(invocation: Invocation[Recall]) -> str:
    """Return the messages that were found, best first, as JSON."""
    arguments = invocation.arguments
    try:
        if arguments.ref:
            snapshot = Snapshot.load(
                arguments.ref,
                person_id=invocation.owner_id,
                asked_in=invocation.conversation_id,
            )
            if arguments.query.strip() and _query(arguments) != snapshot.query:
                raise ToolFailed(ErrorCode.INVALID_TOOL_ARGUMENTS, result=ANOTHER_QUERY)
            results = await in_thread(snapshot.results)
        else:
            snapshot, results = await _found(invocation)
    except Refused as refused:
        is_foreign = refused.code == ErrorCode.SCOPE_REFUSED
        raise ToolFailed(
            refused.code, state=State.REFUSED if is_foreign else State.FAILED
        ) from None
    except BoundExceeded as exceeded:
        raise ToolFailed(exceeded.code) from None
    except DatabaseError:
        raise ToolFailed(ErrorCode.LEXICAL_UNAVAILABLE) from None
    return _told(snapshot, results, here=invocation.conversation_id)


def _query(arguments: Recall) -> str:
    """Return what to look for. Raises as `search.query_of` does."""
    if UNSTORABLE in arguments.query:
        raise Refused(ErrorCode.INVALID_TEXT)
    return search.query_of(arguments.query)


async def _found(invocation: Invocation[Recall]) -> tuple[Snapshot, Results]:
    arguments = invocation.arguments
    query = _query(arguments)
    before: int | None = invocation.before_message_id
    if arguments.everywhere and invocation.asked_at is not None:
        before = await in_thread(_first_said_later, invocation)
    scope = Scope(
        invocation.owner_id,
        None if arguments.everywhere else invocation.conversation_id,
        before,
        invocation.asked_at,
    )
    results = await search.search(arguments.query, scope, limit=arguments.limit)
    made = Snapshot.of(results, query, scope, asked_in=invocation.conversation_id)
    return made, results


def _first_said_later(invocation: Invocation[Recall]) -> int | None:
    """Return the person's first message after the work was admitted.

    `before_message_id` is next to the last one in its own conversation, and elsewhere more may
    have been said by then. What counts is the time; but what is said later must not take up
    places among the candidates.
    """
    later = Message.objects.filter(
        conversation__owner_id=invocation.owner_id,
        pk__gte=invocation.before_message_id,
        created_at__gt=invocation.asked_at,
    )
    first: int | None = later.aggregate(first=Min("pk"))["first"]
    return first


def _told(snapshot: Snapshot, results: Results, *, here: int) -> str:
    found = [hit.found for hit in results.hits]
    worth = classify(found, snapshot.query, now=timezone.now())
    told: dict[str, Any] = {
        "mode": results.mode,
        "ref": snapshot.ref,
        "truncated": results.truncated,
        "hits": [
            {
                "message_id": str(hit.message_id),
                "conversation_id": str(hit.conversation_id),
                "here": hit.conversation_id == here,
                "role": hit.found.role,
                "created_at": hit.found.created_at.isoformat(timespec="seconds"),
                "score": round(hit.score, 6),
                "evidence": evidence,
                "excerpt": hit.excerpt,
            }
            for hit, evidence in zip(results.hits, worth, strict=True)
        ],
    }
    return json.dumps(told, ensure_ascii=False)


TOOL: Final = Tool(
    name="recall",
    description=(
        "Recall what was said earlier, by words and by meaning: in this conversation, or with "
        "everywhere in all conversations of the person. Use it when the person refers to "
        "something that is not in view. Each hit says what it is worth as evidence: rely on "
        "`applicable`, say so when all there is is `weak`, `stale` (over a year old) or "
        "`conflicting`. Mode `text` means that only words could be compared."
    ),
    arguments=Recall,
    effect=Effect.READ,
    call=recall,
    runs="on_loop",
    timeout_seconds=TIMEOUT_SECONDS,
)
