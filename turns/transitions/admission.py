"""A question is asked: the durable record exists before anything works on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Now

from recovery.blanks import shows_something
from recovery.bounds import ADMISSION_GRACE_SECONDS
from recovery.constraints import violated_constraint
from recovery.errors import ErrorCode, Refused
from recovery.switches import require_open
from turns import bounds, events
from turns.digests import digest
from turns.dispatch import dispatch_turn
from turns.lifecycles import KIND
from turns.limits import Limits
from turns.models import Conversation, Message, Turn
from turns.transitions.conversations import checked_client_key, is_storable, lock_person

# Somebody with too many turns at work is told to come back after about one answer.
OWNER_RETRY_SECONDS: Final = 5


@dataclass(frozen=True, slots=True)
class Admission:
    """The turn, and whether this request made it or repeated an earlier one."""

    turn: Turn
    created: bool


def admit_turn(
    owner_id: int, conversation_id: int, text: str, *, client_key: str | None = None
) -> Admission:
    """Store the question, an empty answer and a queued turn; after the commit hint to a worker.

    The same `client_key` with the same text returns the turn it made, whatever became of it.
    The turn keeps today's model and limits.

    Raises:
        Refused: `not_found` for an unknown or foreign conversation, `empty_message`,
            `message_too_long`, `invalid_text`, `client_key_conflict` for a key used with other
            words, `turn_in_progress`, `paused` or `rate_limited` with the seconds to wait.
    """
    check_text(text)
    if client_key is not None:
        client_key = checked_client_key(client_key)
    try:
        return _admit(owner_id, conversation_id, text, client_key)
    except IntegrityError as error:
        # The locks keep two admissions apart. A row written past them is still answered for.
        match violated_constraint(error):
            case "turns_turn_one_active_per_conversation":
                raise Refused(ErrorCode.TURN_IN_PROGRESS) from None
            case "turns_turn_one_per_client_key":
                return _admit(owner_id, conversation_id, text, client_key)
            case _:
                raise


def check_text(text: str) -> None:
    """Return when a person may say `text`.

    Raises:
        Refused: it is blank, too long, or cannot be stored.
    """
    if not is_storable(text):
        raise Refused(ErrorCode.INVALID_TEXT)
    if not shows_something(text):
        raise Refused(ErrorCode.EMPTY_MESSAGE)
    if len(text.encode()) > bounds.USER_MESSAGE_MAX_BYTES:
        raise Refused(ErrorCode.MESSAGE_TOO_LONG)


@transaction.atomic(durable=True)
def _admit(owner_id: int, conversation_id: int, text: str, client_key: str | None) -> Admission:
    asked = digest(text)
    lock_person(owner_id)
    mine = Conversation.objects.filter(pk=conversation_id, owner_id=owner_id)
    if not mine.update(revision=F("revision") + 1, updated_at=Now()):
        raise Refused(ErrorCode.NOT_FOUND)

    turns = Turn.objects.filter(conversation_id=conversation_id)
    if client_key is not None and (known := turns.filter(client_key=client_key).first()):
        if known.request_digest != asked:
            raise Refused(ErrorCode.CLIENT_KEY_CONFLICT)
        transaction.set_rollback(True)  # a repeat changes nothing, the revision included
        return Admission(known, created=False)
    require_open(KIND)
    if turns.open().exists():
        raise Refused(ErrorCode.TURN_IN_PROGRESS)
    _require_rate(conversation_id)
    if Turn.objects.open().of_person(owner_id).count() >= bounds.ACTIVE_TURNS_PER_OWNER:
        raise Refused(ErrorCode.RATE_LIMITED, retry_after_seconds=OWNER_RETRY_SECONDS)

    turn = Turn.objects.create(
        conversation_id=conversation_id,
        user_message=Message.objects.create(
            conversation_id=conversation_id,
            role=Message.Role.USER,
            state=Message.State.COMPLETE,
            text=text,
            digest=asked,
            finished_at=Now(),
        ),
        assistant_message=Message.objects.create(
            conversation_id=conversation_id,
            role=Message.Role.ASSISTANT,
            state=Message.State.STREAMING,
        ),
        client_key=client_key,
        request_digest=asked,
        model=settings.LLM_MODEL,
        limits=Limits().snapshot(),
        queue_deadline_at=Now() + timedelta(seconds=bounds.QUEUE_DEADLINE_SECONDS),
        next_dispatch_at=Now() + timedelta(seconds=ADMISSION_GRACE_SECONDS),
    )
    turn.refresh_from_db()
    events.announce_on_commit(conversation_id)
    transaction.on_commit(partial(dispatch_turn, turn.pk))
    return Admission(turn, created=True)


def _require_rate(conversation_id: int) -> None:
    """Return when the conversation had fewer than 50 turns in the last minute."""
    oldest_that_counts = (
        Turn.objects.filter(conversation_id=conversation_id)
        .order_by("-pk")
        .annotate(age=Now() - F("created_at"))
        .values_list("age", flat=True)[bounds.TURNS_PER_WINDOW - 1 : bounds.TURNS_PER_WINDOW]
        .first()
    )
    window = timedelta(seconds=bounds.TURN_WINDOW_SECONDS)
    if oldest_that_counts is not None and oldest_that_counts < window:
        wait = math.ceil((window - oldest_that_counts).total_seconds())
        raise Refused(ErrorCode.RATE_LIMITED, retry_after_seconds=max(1, wait))
