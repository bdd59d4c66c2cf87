"""A conversation begins."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django.db import transaction

from recovery.errors import ErrorCode, Refused
from turns import bounds
from turns.models import Conversation


@transaction.atomic(durable=True)
def create_conversation(
    owner_id: int, *, title: str = "", client_key: str | None = None
) -> tuple[Conversation, bool]:
    """Return the person's conversation under `client_key`, or a new one, and whether it is new.

    A repeated key returns the record as it is now: its title may have changed since.

    Raises:
        Refused: the key or title cannot be stored, there are too many conversations, or the
            person does not exist.
    """
    title = storable_line(title, bounds.TITLE_MAX_CHARS)
    if client_key is not None:
        client_key = checked_client_key(client_key)
    lock_person(owner_id)
    own = Conversation.objects.filter(owner_id=owner_id)
    if client_key is not None and (known := own.filter(client_key=client_key).first()):
        return known, False
    limit = bounds.CONVERSATIONS_PER_OWNER
    if own.order_by("pk").values("pk")[limit - 1 : limit].exists():
        raise Refused(ErrorCode.RATE_LIMITED)
    conversation = Conversation.objects.create(
        owner_id=owner_id, title=title, client_key=client_key
    )
    return conversation, True


def lock_person(owner_id: int) -> None:
    """Lock the person's row, which makes every count of what they own true until the commit.

    Taken by admission alone and before any conversation, so it cannot meet another order.

    Raises:
        Refused: there is nobody by this id.
    """
    people = get_user_model().objects.select_for_update(no_key=True)
    if not people.filter(pk=owner_id).values_list("pk").first():
        raise Refused(ErrorCode.NOT_FOUND)


def checked_client_key(client_key: str) -> str:
    """Return the key when it can be stored and told apart from no key.

    Raises:
        Refused: it cannot.
    """
    if not 0 < len(client_key) <= bounds.CLIENT_KEY_MAX_CHARS or not is_storable(client_key):
        raise Refused(ErrorCode.INVALID_REQUEST)
    return client_key


def storable_line(text: str, limit_chars: int) -> str:
    """Return `text` without space around it.

    Raises:
        Refused: it is too long or cannot be stored.
    """
    text = text.strip()
    if not is_storable(text):
        raise Refused(ErrorCode.INVALID_TEXT)
    if len(text) > limit_chars:
        raise Refused(ErrorCode.INVALID_REQUEST)
    return text


def is_storable(text: str) -> bool:
    """True when PostgreSQL and UTF-8 take `text`: no NUL, no lone surrogate."""
    if "\x00" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
