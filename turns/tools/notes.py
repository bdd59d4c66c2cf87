"""`note_save`, `note_list` and `note_remove`: what a person wants remembered, and its reverse.

A note belongs to the person, not to the conversation. Saving is undone by removing, so both are
reversible writes.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

from pydantic import Field

from recovery.bounds import cut_utf8
from recovery.errors import BoundExceeded, ErrorCode, StaleFence
from turns import bounds, ids, transitions
from turns.models import Note
from turns.tools.registry import Arguments, Effect, Invocation, State, Tool, ToolFailed

LISTED_MAX: Final = 50
LISTED_TEXT_MAX_BYTES: Final = 600


class NoteSave(Arguments):
    """What to remember."""

    text: Annotated[str, Field(min_length=1, max_length=bounds.NOTE_MAX_BYTES)]


class NoteList(Arguments):
    """Nothing to say."""


class NoteRemove(Arguments):
    """Which one to forget."""

    note_id: Annotated[str, Field(max_length=ids.MAX_CHARS)]


def note_save(invocation: Invocation[NoteSave]) -> str:
    """Keep the note; return its id, as JSON."""
    text = invocation.arguments.text
    if not text.strip() or len(text.encode()) > bounds.NOTE_MAX_BYTES:
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS,
            result=f"`text` must say something in at most {bounds.NOTE_MAX_BYTES} bytes.",
        )
    try:
        note = transitions.save_note(invocation.owner_id, text, key=invocation.key)
    except BoundExceeded as full:
        raise ToolFailed(
            full.code,
            state=State.REFUSED,
            result=f"There are {bounds.NOTES_PER_OWNER} notes; one must be removed first.",
        ) from None
    except StaleFence:
        raise _too_late() from None
    return json.dumps({"disposition": "stored", "note_id": str(note.pk)})


def note_list(invocation: Invocation[NoteList]) -> str:
    """Return the person's newest notes, as JSON."""
    own = Note.objects.filter(owner_id=invocation.owner_id).order_by("-pk")
    newest = list(own[: LISTED_MAX + 1])
    notes = [
        {
            "note_id": str(note.pk),
            "created_at": note.created_at.isoformat(timespec="seconds"),
            "text": cut_utf8(note.text, LISTED_TEXT_MAX_BYTES),
        }
        for note in newest[:LISTED_MAX]
    ]
    return json.dumps(
        {"notes": notes, "truncated": len(newest) > LISTED_MAX}, ensure_ascii=False
    )


def note_remove(invocation: Invocation[NoteRemove]) -> str:
    """Forget the note; one that is unknown or somebody else's is not found."""
    note_id = ids.parse_id(invocation.arguments.note_id)
    try:
        removed = note_id is not None and transitions.remove_note(
            invocation.owner_id, note_id, key=invocation.key
        )
    except StaleFence:
        raise _too_late() from None
    if not removed:
        raise ToolFailed(ErrorCode.NOT_FOUND)
    return json.dumps({"disposition": "forgotten"})


def _too_late() -> ToolFailed:
    """The turn ended while this waited for its turn: nothing happened."""
    return ToolFailed(ErrorCode.CANCELLED, state=State.CANCELLED)


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        name="note_save",
        description=(
            "Remember something about the person or their work, in one sentence, for all their "
            "conversations. Use it only when they ask you to remember."
        ),
        arguments=NoteSave,
        effect=Effect.REVERSIBLE,
        call=note_save,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
    Tool(
        name="note_list",
        description="List what the person asked you to remember, newest first.",
        arguments=NoteList,
        effect=Effect.READ,
        call=note_list,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
    Tool(
        name="note_remove",
        description=(
            "Forget one remembered note, by its note_id from note_list. Use it only when the "
            "person asks you to forget."
        ),
        arguments=NoteRemove,
        effect=Effect.REVERSIBLE,
        call=note_remove,
        runs="in_database_thread",
        timeout_seconds=20,
    ),
)
