"""Pages of what there is: a person's conversations, and the messages of one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

from turns.projection import MESSAGE, MESSAGE_WITH_TURN, read_messages, rows_of
from turns.schemas import ListedConversation, MessageView

PAGE_MAX_ITEMS: Final = 100
EXCERPT_CHARS: Final = 80
# Above every id there can be.
NO_END: Final = 2**63 - 1
# within a bigint and an integer of PostgreSQL
PLACE: Final = re.compile(r"\d{1,16}\.\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConversationsBefore:
    """A place in the list of conversations: everything after it is less recently active."""

    updated_microseconds: int
    conversation_id: int

    def __str__(self) -> str:
        return f"{self.updated_microseconds}.{self.conversation_id}"

    @classmethod
    def parse(cls, text: str) -> ConversationsBefore | None:
        """Return the place a client handed back, None when it is not one of ours."""
        if PLACE.fullmatch(text) is None:
            return None
        return cls(*map(int, text.split(".")))


@dataclass(frozen=True, slots=True)
class Page:
    """Messages that follow one another, newest first, and whether there are more beyond."""

    messages: tuple[MessageView, ...]
    has_older: bool
    has_newer: bool

    @property
    def next(self) -> str | None:
        """Before which id older ones are, None when there are none."""
        return self.messages[-1].id if self.messages and self.has_older else None

    @property
    def previous(self) -> str | None:
        """After which id newer ones are, None when there are none."""
        return self.messages[0].id if self.messages and self.has_newer else None


def messages(
    conversation_id: int,
    owner_id: int,
    *,
    before: int | None = None,
    after: int | None = None,
    around: int | None = None,
    limit: int,
) -> Page | None:
    """Return up to `limit` messages that follow one another, newest first.

    One of the ids says which: those next before it, next after it, or on both sides of it and
    itself; without any, the newest. None when the conversation is not theirs, or `around` is
    not in it.
    """
    newer = limit // 2 if around is not None else limit if after is not None else 0
    rows = rows_of(
        f"""SELECT json_build_object('messages', coalesce(p.messages, '[]'::json),
                'has_older', EXISTS (SELECT FROM turns_message x
                    WHERE x.conversation_id = c.id AND x.id < p.oldest),
                'has_newer', EXISTS (SELECT FROM turns_message x
                    WHERE x.conversation_id = c.id AND x.id > p.newest))::text
            FROM turns_conversation c CROSS JOIN LATERAL (
                SELECT json_agg(w.message ORDER BY w.id DESC) AS messages,
                    min(w.id) AS oldest, max(w.id) AS newest
                FROM ((SELECT m.id, {MESSAGE} AS message FROM {MESSAGE_WITH_TURN}
                        WHERE m.conversation_id = c.id AND m.id <= %(upto)s
                        ORDER BY m.id DESC LIMIT %(older)s)
                    UNION ALL
                    (SELECT m.id, {MESSAGE} AS message FROM {MESSAGE_WITH_TURN}
                        WHERE m.conversation_id = c.id AND m.id > %(above)s
                        ORDER BY m.id LIMIT %(newer)s)) w) p
            WHERE c.id = %(conversation)s AND c.owner_id = %(owner)s
                AND (%(around)s::bigint IS NULL OR EXISTS (SELECT FROM turns_message x
                    WHERE x.conversation_id = c.id AND x.id = %(around)s::bigint))
        """,  # noqa: S608  constants
        {
            "conversation": conversation_id,
            "owner": owner_id,
            "around": around,
            "upto": around or (before - 1 if before is not None else NO_END),
            "above": around or after or NO_END,
            "older": limit - newer,
            "newer": newer,
        },
    )
    if not rows:
        return None
    value = json.loads(rows[0][0])
    return Page(read_messages(value["messages"]), value["has_older"], value["has_newer"])


def conversations(
    owner_id: int, *, before: ConversationsBefore | None = None, limit: int
) -> list[tuple[ListedConversation, ConversationsBefore]]:
    """Return the person's conversations, the last active first, each with its place there."""
    rows = rows_of(
        """SELECT json_build_object('id', c.id::text, 'title', c.title,
                'created_at', c.created_at,
                'excerpt', coalesce((SELECT left(m.text, %(excerpt)s) FROM turns_message m
                    WHERE m.conversation_id = c.id ORDER BY m.id LIMIT 1), ''),
                'active', EXISTS (SELECT FROM turns_turn t WHERE t.conversation_id = c.id
                    AND t.state IN ('queued', 'running'))/* active */)::text,
            (extract(epoch FROM c.updated_at) * 1000000)::bigint, c.id
        FROM turns_conversation c
        WHERE c.owner_id = %(owner)s AND (%(updated)s::bigint IS NULL
            OR (c.updated_at, c.id) < (timestamptz 'epoch'
                + %(updated)s::bigint * interval '1 microsecond', %(id)s::bigint))
        ORDER BY c.updated_at DESC, c.id DESC LIMIT %(limit)s""",
        {
            "owner": owner_id,
            "updated": before.updated_microseconds if before else None,
            "id": before.conversation_id if before else None,
            "limit": limit,
            "excerpt": EXCERPT_CHARS,
        },
    )
    return [
        (ListedConversation.model_validate_json(text), ConversationsBefore(updated, pk))
        for text, updated, pk in rows
    ]
