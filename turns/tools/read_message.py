"""`read_message`: one earlier message of the person, whole or from a place in it.

Somebody else's message and one that never was are the same: not found.
"""

from __future__ import annotations

import json
from typing import Annotated, Final

from pydantic import Field

from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode
from turns import bounds, ids
from turns.models import Message
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed

# Escaped as JSON, six bytes a character at worst, it still fits into a result.
PAGE_MAX_BYTES: Final = 10_000


class ReadMessage(Arguments):
    """Which message, and from which character on."""

    message_id: Annotated[str, Field(max_length=ids.MAX_CHARS)]
    offset: Annotated[int, Field(ge=0, le=bounds.MESSAGE_ROW_MAX_BYTES)] = 0


def read_message(invocation: Invocation[ReadMessage]) -> str:
    """Return the message, as JSON; `next_offset` is where a longer one goes on."""
    arguments = invocation.arguments
    mine = Message.objects.filter(conversation__owner_id=invocation.owner_id)
    said = mine.exclude(state=Message.State.STREAMING)
    message = said.filter(pk=ids.parse_id(arguments.message_id) or 0).first()
    if message is None:
        raise ToolFailed(ErrorCode.NOT_FOUND)
    text = cut_utf8(message.text[arguments.offset :], PAGE_MAX_BYTES)
    end = arguments.offset + len(text)
    return json.dumps(
        {
            "message_id": str(message.pk),
            "role": message.role,
            "state": message.state,
            "created_at": message.created_at.isoformat(timespec="seconds"),
            "text": text,
            "next_offset": end if end < len(message.text) else None,
        },
        ensure_ascii=False,
    )


TOOL: Final = Tool(
    name="read_message",
    description=(
        "Read an earlier message of the person or of yourself, by the message_id that "
        "search_history gives. Long messages come in parts: pass next_offset as offset."
    ),
    arguments=ReadMessage,
    effect=Effect.READ,
    call=read_message,
    runs="in_database_thread",
    timeout_seconds=20,
)
