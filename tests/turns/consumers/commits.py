"""What is committed while somebody looks, and who they are."""

from __future__ import annotations

from typing import Any

from recovery.executor import in_thread
from tests.factories import TextChunkFactory, fence_of
from turns import events
from turns.models import Message, Turn
from turns.tokens import create_token
from turns.transitions import finish_turn


def bearer(user_id: int) -> dict[str, str]:
    return {"authorization": f"Bearer {create_token(user_id)}"}


async def write(turn: Turn, *texts: str, announced: bool = True) -> None:
    """Commit live text as the text log does, a chunk for each of `texts`."""

    def commit() -> None:
        for text in texts:
            TextChunkFactory(turn=turn, text=text)

    await in_thread(commit)
    if announced:
        events.announce(turn.conversation_id)


async def finish(turn: Turn, state: Turn.State = Turn.State.COMPLETED, **outcome: Any) -> None:
    def commit() -> None:
        finish_turn(fence_of(turn), state, last_seq=turn.chunks.count(), **outcome)

    await in_thread(commit)


async def stored_texts(conversation_id: int) -> dict[str, str]:
    """Return the text of each ended message, by id, as PostgreSQL has it."""

    def read() -> dict[str, str]:
        rows = Message.objects.filter(conversation_id=conversation_id)
        return {str(pk): text for pk, text in rows.values_list("pk", "text")}

    return await in_thread(read)


def rename_nothing(turn: Turn) -> None:
    """Raise the revision, as every transition does, and announce it."""
    type(turn.conversation).objects.filter(pk=turn.conversation_id).update(
        revision=turn.conversation.revision + 1
    )
    events.announce(turn.conversation_id)
