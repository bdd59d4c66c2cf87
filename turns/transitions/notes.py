"""A note is kept, or forgotten again.

Both are effects of a tool call, and commit only while the call's own step is running: the lock
on the step decides between the effect and the end of a turn that was cancelled, timed out or
recovered. The person's row is locked first, as in every admission.
"""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from recovery.errors import BoundExceeded, ErrorCode
from turns import bounds
from turns.models import Note
from turns.transitions.conversations import lock_person
from turns.transitions.tool_steps import require_running


@transaction.atomic(durable=True)
def save_note(owner_id: int, text: str, *, key: UUID) -> Note:
    """Return the note that the call `key` stores; delivered again, the one it stored before.

    Raises:
        StaleFence: the call does not run any more. Nothing was written.
        BoundExceeded: the person has as many notes as allowed. Nothing was written.
    """
    lock_person(owner_id)
    if known := Note.objects.filter(owner_id=owner_id, invocation_key=key).first():
        return known
    require_running(key)
    if Note.objects.filter(owner_id=owner_id).count() >= bounds.NOTES_PER_OWNER:
        raise BoundExceeded(ErrorCode.TOOL_FAILED)
    return Note.objects.create(owner_id=owner_id, text=text, invocation_key=key)


@transaction.atomic(durable=True)
def remove_note(owner_id: int, note_id: int, *, key: UUID) -> bool:
    """Return whether the person had this note, which is gone now.

    Raises:
        StaleFence: the call `key` does not run any more. Nothing was written.
    """
    lock_person(owner_id)
    require_running(key)
    removed, _ = Note.objects.filter(owner_id=owner_id, pk=note_id).delete()
    return removed > 0
