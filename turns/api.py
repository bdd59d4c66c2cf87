"""The JSON API of conversations, turns and messages (mounted under /api/v1).

Each endpoint takes ids, calls one transition or one projection off the event loop, and answers
with a shape of `turns/schemas.py`. Refusals are raised; `config/api.py` gives each its status.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from django.http import HttpRequest
from ninja import Path, Query, Router, Schema, Status
from pydantic import BaseModel, Field, StrictStr

from recovery.errors import ErrorCode, Refused
from recovery.executor import in_thread
from turns import bounds, pages, projection, transitions
from turns.ids import parse_id
from turns.models import Conversation
from turns.pages import ConversationsBefore
from turns.schemas import (
    ConversationShape,
    ListedConversation,
    MessageShape,
    MessageView,
    Problem,
    TurnShape,
    narrowed,
)

router = Router(tags=["conversations"])

DEFAULT_PAGE = 50
Id = Annotated[str, Path(description="An id as a string; unknown and foreign look the same.")]
Limit = Annotated[int, Query(ge=1, le=pages.PAGE_MAX_ITEMS, description="Items at most.")]
ClientKey = Annotated[
    StrictStr | None,
    Field(
        description="Chosen by the client: a repeat returns the record the first one made.",
        min_length=1,
        max_length=bounds.CLIENT_KEY_MAX_CHARS,
    ),
]
UNKNOWN = {404: Problem}
ASKED_WRONGLY = {400: Problem, 422: Problem}


class Asked(BaseModel):
    """A body: a JSON object. Ninja's own base would read the attributes of any other value,
    such as a string's method `title`."""


class NewConversation(Asked):
    """A conversation to begin."""

    title: StrictStr = ""
    client_key: ClientKey = None


class Title(Asked):
    """A conversation's new title."""

    title: StrictStr


class Question(Asked):
    """What a person says: 8,000 bytes of UTF-8 at most."""

    text: StrictStr
    client_key: ClientKey = None


class Words(Asked):
    """A message's corrected words."""

    text: StrictStr


class ConversationPage(Schema):
    """Conversations, the last active first; `next` is the `before` of the following page."""

    conversations: list[ListedConversation]
    next: str | None


class MessagePage(Schema):
    """Messages, newest first; `next` is the `before` of the page with older ones, `previous`
    the `after` of the page with newer ones."""

    messages: list[MessageShape]
    next: str | None
    previous: str | None


@router.get("/conversations", response={200: ConversationPage, **ASKED_WRONGLY})
async def list_conversations(
    request: HttpRequest, before: str | None = None, limit: Limit = DEFAULT_PAGE
) -> ConversationPage:
    """List the person's conversations."""
    since = None
    if before is not None and (since := ConversationsBefore.parse(before)) is None:
        raise Refused(ErrorCode.INVALID_REQUEST)
    rows = await in_thread(
        pages.conversations, person_of(request), before=since, limit=limit + 1
    )
    shown = rows[:limit]
    return ConversationPage(
        conversations=[row for row, _ in shown],
        next=str(shown[-1][1]) if len(rows) > limit else None,
    )


@router.post(
    "/conversations",
    response={200: ConversationShape, 201: ConversationShape, **ASKED_WRONGLY, 429: Problem},
)
async def create_conversation(request: HttpRequest, body: NewConversation) -> Status[Any]:
    """Begin a conversation: 201, or 200 for a repeat of the same `client_key`."""
    conversation, created = await in_thread(
        transitions.create_conversation,
        person_of(request),
        title=body.title,
        client_key=body.client_key,
    )
    return Status(201 if created else 200, _shape(conversation))


@router.patch(
    "/conversations/{conversation_id}",
    response={200: ConversationShape, **UNKNOWN, **ASKED_WRONGLY},
)
async def rename_conversation(
    request: HttpRequest, conversation_id: Id, body: Title
) -> ConversationShape:
    """Give a conversation another title."""
    conversation = await in_thread(
        transitions.rename_conversation, person_of(request), pk_of(conversation_id), body.title
    )
    return _shape(conversation)


@router.delete("/conversations/{conversation_id}", response={204: None, **UNKNOWN})
async def delete_conversation(request: HttpRequest, conversation_id: Id) -> Status[Any]:
    """Remove a conversation with everything in it; an answer being written stops."""
    await in_thread(transitions.delete_conversation, person_of(request), pk_of(conversation_id))
    return Status(204, None)


@router.post(
    "/conversations/{conversation_id}/turns",
    response={
        200: TurnShape,
        202: TurnShape,
        **UNKNOWN,
        **ASKED_WRONGLY,
        409: Problem,
        429: Problem,
    },
    tags=["turns"],
)
async def create_turn(request: HttpRequest, conversation_id: Id, body: Question) -> Status[Any]:
    """Ask: 202 with the queued turn, or 200 for a repeat of the same `client_key`."""
    admission = await in_thread(
        transitions.admit_turn,
        person_of(request),
        pk_of(conversation_id),
        body.text,
        client_key=body.client_key,
    )
    shown = await _turn(request, admission.turn.pk)
    return Status(202 if admission.created else 200, shown)


@router.get("/turns/{turn_id}", response={200: TurnShape, **UNKNOWN}, tags=["turns"])
async def get_turn(request: HttpRequest, turn_id: Id) -> TurnShape:
    """Show a turn with its text as far as it is committed."""
    return await _turn(request, pk_of(turn_id))


@router.post(
    "/turns/{turn_id}/cancel",
    response={200: TurnShape, 202: TurnShape, **UNKNOWN},
    tags=["turns"],
)
async def cancel_turn(request: HttpRequest, turn_id: Id) -> Status[Any]:
    """Ask a turn to stop: 202, or 200 with the end it had reached before."""
    turn, accepted = await in_thread(
        transitions.request_cancel, person_of(request), pk_of(turn_id)
    )
    return Status(202 if accepted else 200, await _turn(request, turn.pk))


@router.get(
    "/conversations/{conversation_id}/messages",
    response={200: MessagePage, **UNKNOWN, **ASKED_WRONGLY},
    tags=["messages"],
)
async def list_messages(
    request: HttpRequest,
    conversation_id: Id,
    *,
    before: str | None = None,
    after: str | None = None,
    around: str | None = None,
    limit: Limit = DEFAULT_PAGE,
) -> MessagePage:
    """List a conversation's messages, newest first: the newest, those next before or after an
    id, or those around a message. One that is not there has none around it: `not_found`."""
    places = {"before": before, "after": after, "around": around}
    given = {name: parse_id(text) for name, text in places.items() if text is not None}
    if len(given) > 1 or None in given.values():
        raise Refused(ErrorCode.INVALID_REQUEST)
    page = await in_thread(
        pages.messages,
        pk_of(conversation_id),
        person_of(request),
        **given,
        limit=limit,
    )
    if page is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return MessagePage(
        messages=[narrowed(m, MessageShape) for m in page.messages],
        next=page.next,
        previous=page.previous,
    )


@router.get("/messages/{message_id}", response={200: MessageView, **UNKNOWN}, tags=["messages"])
async def get_message(request: HttpRequest, message_id: Id) -> MessageView:
    """Show one message with its HTML, as the live view does where it fits into a frame."""
    found = await in_thread(projection.message, pk_of(message_id), person_of(request))
    if found is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return found


@router.patch(
    "/messages/{message_id}",
    response={200: MessageShape, **UNKNOWN, **ASKED_WRONGLY, 409: Problem},
    tags=["messages"],
)
async def edit_message(request: HttpRequest, message_id: Id, body: Words) -> MessageShape:
    """Correct one's own words. The answer they were given stays."""
    await in_thread(transitions.edit_message, person_of(request), pk_of(message_id), body.text)
    found = await in_thread(projection.message, pk_of(message_id), person_of(request))
    if found is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return narrowed(found, MessageShape)


@router.delete(
    "/messages/{message_id}",
    response={204: None, **UNKNOWN, 409: Problem},
    tags=["messages"],
)
async def delete_message(request: HttpRequest, message_id: Id) -> Status[Any]:
    """Remove a message; with a question goes its answer, which may repeat it."""
    await in_thread(transitions.delete_message, person_of(request), pk_of(message_id))
    return Status(204, None)


def person_of(request: HttpRequest) -> int:
    """Return who asks, as `config/api.py` found out."""
    return cast(int, cast(Any, request).auth)


def pk_of(text: str) -> int:
    """Return the number of an id. What is none names nothing that is there: `not_found`."""
    value = parse_id(text)
    if value is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return value


async def _turn(request: HttpRequest, turn_id: int) -> TurnShape:
    found = await in_thread(projection.turn, turn_id, person_of(request))
    if found is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return narrowed(found, TurnShape)


def _shape(conversation: Conversation) -> ConversationShape:
    return ConversationShape(
        id=str(conversation.pk), title=conversation.title, created_at=conversation.created_at
    )
