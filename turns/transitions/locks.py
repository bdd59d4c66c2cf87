"""The first lines of every transition: raise the revision, lock the turn, check the fence."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection
from django.db.models import F, QuerySet

from recovery.arrays import array
from recovery.errors import IllegalTransition, StaleFence
from recovery.fences import Fence
from turns import events
from turns.models import Conversation, Turn


class CancelRequested(IllegalTransition):
    """Somebody asked for this turn to stop: nothing new starts. Nothing was written."""


def raise_revision_of(
    turn_id: int, *, owner_id: int | None = None, queued_only: bool = False
) -> bool:
    """Lock the conversation of a turn by raising its revision; False when there is none.

    A turn's conversation never changes, so it may be looked up without a lock. With `owner_id`
    somebody else's conversation is none; `queued_only` turns away what can no longer be claimed
    (which the caller tests again under the lock).
    """
    turn = Turn.objects.filter(pk=turn_id)
    if queued_only:
        turn = turn.filter(state=Turn.State.QUEUED, cancel_requested_at__isnull=True)
    conversations = Conversation.objects.filter(pk__in=turn.values("conversation_id"))
    if owner_id is not None:
        conversations = conversations.filter(owner_id=owner_id)
    return raise_revisions(conversations) == 1


def raise_revisions(conversations: QuerySet[Conversation]) -> int:
    """Raise the revision of each conversation; return how many there were.

    `updated_at` stays: it is indexed, and only a person's own act moves a conversation up.
    """
    return conversations.update(revision=F("revision") + 1)


def raise_revisions_of(conversation_ids: Iterable[int]) -> None:
    """Raise the revisions of many locked conversations. By id: a join reads the whole table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE turns_conversation SET revision = revision + 1 "
            "WHERE id = ANY(%s::bigint[])",
            [array(conversation_ids)],
        )


def lock_turn(turn_id: int) -> Turn | None:
    """Return the turn, locked against every other writer. Its conversation is locked
    already."""
    return Turn.objects.select_for_update(no_key=True).filter(pk=turn_id).first()


def lock_owned(fence: Fence, *, starting: bool = False) -> Turn:
    """Return the running turn of this claim, its conversation and itself locked.

    `starting` is true for what would begin something new: a cancel forbids that.

    Raises:
        StaleFence: the turn has ended, is gone, or was claimed by another.
        CancelRequested: the turn is to stop, and this would start something.
    """
    turn = lock_turn(fence.pk) if raise_revision_of(fence.pk) else None
    if turn is None or turn.state != Turn.State.RUNNING:
        raise StaleFence
    fence.require(turn.generation, turn.claim_token)
    if starting and turn.cancel_requested_at is not None:
        raise CancelRequested
    events.announce_on_commit(turn.conversation_id)
    return turn
