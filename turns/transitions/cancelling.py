"""A person asks for a turn to stop."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from recovery.fences import marked_by_row
from turns import events
from turns.models import Turn
from turns.transitions.endings import end_turns
from turns.transitions.locks import lock_turn, raise_revision_of


@transaction.atomic(durable=True)
def request_cancel(owner_id: int, turn_id: int) -> tuple[Turn, bool]:
    """Return the turn, and whether it is stopping or stopped by this: False had it ended
    before.

    A turn that nobody alive works on ends at once, with everything it consists of. Otherwise
    the request is durable: from here on nothing new starts and any finish becomes `cancelled`.

    Raises:
        Refused: `not_found` for an unknown or foreign turn.
    """
    if not raise_revision_of(turn_id, owner_id=owner_id):
        raise Refused(ErrorCode.NOT_FOUND)
    turn = lock_turn(turn_id)
    if turn is None:
        raise Refused(ErrorCode.NOT_FOUND)
    if turn.state in Turn.LIFECYCLE.terminal:
        transaction.set_rollback(True)
        return turn, False
    mine = Turn.objects.filter(pk=turn_id)
    if turn.cancel_requested_at is None:
        mine.update(cancel_requested_at=Now(), write_mark=marked_by_row())
    # Asked again under the lock: a queued turn has no owner, a dead one's is buried.
    if turn.state == Turn.State.QUEUED or mine.orphaned().exists():
        end_turns([turn_id], Turn.State.CANCELLED, ErrorCode.CANCELLED)
    turn.refresh_from_db()
    events.announce_on_commit(turn.conversation_id)
    return turn, True
