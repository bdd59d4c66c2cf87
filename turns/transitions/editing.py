"""A person renames, corrects or removes what is theirs.

Each of these changes something a live view already shows, so `rewritten_revision` moves along
with the revision: every open view is shown the conversation anew.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from turns import bounds, events
from turns.digests import digest
from turns.models import Conversation, Message, TextChunk, Turn
from turns.transitions.admission import check_text
from turns.transitions.conversations import storable_line


@transaction.atomic(durable=True)
def rename_conversation(owner_id: int, conversation_id: int, title: str) -> Conversation:
    """Return the conversation under its new title.

    Raises:
        Refused: `not_found`, or the title cannot be stored.
    """
    title = storable_line(title, bounds.TITLE_MAX_CHARS)
    _rewrite(owner_id, conversation_id)
    mine = Conversation.objects.filter(pk=conversation_id)
    mine.update(title=title)
    return mine.get()


@transaction.atomic(durable=True)
def delete_conversation(owner_id: int, conversation_id: int) -> None:
    """Remove the conversation with everything in it, a running turn included.

    Whoever runs that turn has lost its fence: its next write is refused and it stops.

    Raises:
        Refused: `not_found`.
    """
    mine = Conversation.objects.select_for_update().filter(
        pk=conversation_id, owner_id=owner_id
    )
    conversation = mine.first()
    if conversation is None:
        raise Refused(ErrorCode.NOT_FOUND)
    turns = Turn.objects.select_for_update().filter(conversation_id=conversation_id)
    turn_ids = list(turns.order_by("pk").values_list("pk", flat=True))
    TextChunk.objects.filter(turn_id__in=turn_ids).delete()
    conversation.delete()
    events.announce_on_commit(conversation_id)


@transaction.atomic(durable=True)
def edit_message(owner_id: int, message_id: int, text: str) -> Message:
    """Return the person's message with its words corrected. The answer stays as it was given.

    Raises:
        Refused: `not_found`; `turn_in_progress` while it is being answered; `invalid_request`
            for an answer, which nobody may put words into; or the text cannot be stored.
    """
    check_text(text)
    message, _ = _lock_message(owner_id, message_id)
    if message.role != Message.Role.USER:
        raise Refused(ErrorCode.INVALID_REQUEST)
    own = Message.objects.filter(pk=message_id)
    own.update(text=text, digest=digest(text), edited_at=Now())
    return own.get()


@transaction.atomic(durable=True)
def delete_message(owner_id: int, message_id: int) -> None:
    """Remove a message and the record of its turn, which tells what it said.

    With a question goes its answer, which may repeat it. Without an answer the question stays.

    Raises:
        Refused: `not_found`, or `turn_in_progress` while it is being answered.
    """
    message, turn = _lock_message(owner_id, message_id)
    answer_id = turn.assistant_message_id if turn is not None else None
    message.delete()
    if message.role == Message.Role.USER and answer_id is not None:
        Message.objects.filter(pk=answer_id).delete()


def _rewrite(owner_id: int, conversation_id: int) -> None:
    """Lock the conversation by raising both its revisions."""
    mine = Conversation.objects.filter(pk=conversation_id, owner_id=owner_id)
    raised = F("revision") + 1
    if not mine.update(revision=raised, rewritten_revision=raised):
        raise Refused(ErrorCode.NOT_FOUND)
    events.announce_on_commit(conversation_id)


def _lock_message(owner_id: int, message_id: int) -> tuple[Message, Turn | None]:
    """Return the message and its ended turn, if it has one, under the conversation's lock."""
    # A message never changes its conversation, so it may be looked up without a lock.
    found = Message.objects.filter(pk=message_id).values_list("conversation_id", flat=True)
    _rewrite(owner_id, found.first() or 0)
    turns = Turn.objects.select_for_update().filter(
        Q(user_message_id=message_id) | Q(assistant_message_id=message_id)
    )
    turn = turns.first()
    if turn is not None and turn.state not in Turn.LIFECYCLE.terminal:
        raise Refused(ErrorCode.TURN_IN_PROGRESS)
    message = Message.objects.select_for_update().filter(pk=message_id).first()
    if message is None:
        raise Refused(ErrorCode.NOT_FOUND)
    return message, turn
