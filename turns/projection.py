"""What a conversation looks like right now, read in one statement.

Two statements would tear: between them a turn may end, its text chunks be folded into the
message and be gone (blank) or be there twice. A snapshot and a change therefore each come from
one statement, and the cursor that goes with them names exactly what they show.

The SQL is shared by the API, which runs it through Django, and by the live reader of
`turns/live.py`, which runs it on a connection of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString, cast

from django.db import connection

from turns.panels import panels
from turns.schemas import (
    ConversationShape,
    MessageView,
    TurnView,
)

SNAPSHOT_MESSAGES: Final = 50
# A view that missed more turns than this is shown a snapshot instead of each of them.
MISSED_TURNS_MAX: Final = 3
# within a bigint and an integer of PostgreSQL
CURSOR: Final = re.compile(r"\d{1,18}\.\d{1,18}\.\d{1,9}\.\d{1,9}\.[01]", re.ASCII)

# --- JSON of one row, over the aliases t (turn), m (message) ---

LIVE_TEXT: Final[LiteralString] = """
    (SELECT string_agg(k.text, '' ORDER BY k.seq) FROM turns_textchunk k WHERE k.turn_id = t.id)
"""
LIVE_SEQ: Final[LiteralString] = """
    coalesce((SELECT max(k.seq) FROM turns_textchunk k WHERE k.turn_id = t.id), 0)
"""
TOOL_STEPS: Final[LiteralString] = """
    coalesce((SELECT json_agg(json_build_object('id', x.id::text, 'kind', 'tool',
                'name', x.name, 'state', x.state, 'error_code', nullif(x.error_code, ''))
            ORDER BY x.sequence)
        FROM turns_toolstep x WHERE x.turn_id = t.id), '[]'::json)
"""
MESSAGE: Final[LiteralString] = f"""
    json_build_object('id', m.id::text, 'role', m.role, 'state', m.state,
        'text', CASE WHEN m.state = 'streaming' THEN m.text || coalesce({LIVE_TEXT}, '')
                     ELSE m.text END,
        'seq', CASE WHEN m.state = 'streaming' THEN {LIVE_SEQ} ELSE 0 END,
        'created_at', m.created_at, 'edited_at', m.edited_at, 'turn_id', t.id::text,
        'error_code', CASE WHEN m.role = 'assistant' THEN nullif(t.error_code, '') END,
        'about', CASE WHEN t.id IS NULL THEN coalesce(/* about */ NULL::json) END,
        'steps', CASE WHEN m.role = 'assistant' THEN {TOOL_STEPS} ELSE '[]'::json END)
"""
MESSAGE_WITH_TURN: Final[LiteralString] = """
    turns_message m
    LEFT JOIN turns_turn asked ON m.role = 'user' AND asked.user_message_id = m.id
    LEFT JOIN turns_turn answered
        ON m.role = 'assistant' AND answered.assistant_message_id = m.id
    LEFT JOIN turns_turn t ON t.id = coalesce(asked.id, answered.id)
"""
TURN: Final[LiteralString] = f"""
    json_build_object('id', t.id::text, 'conversation_id', t.conversation_id::text,
        'state', t.state, 'error_code', nullif(t.error_code, ''), 'generation', t.generation,
        'created_at', t.created_at, 'finished_at', t.finished_at,
        'cancel_requested', t.cancel_requested_at IS NOT NULL,
        'usage', (SELECT r.usage FROM turns_receipt r WHERE r.turn_id = t.id),
        'messages', (SELECT json_agg({MESSAGE} ORDER BY m.id) FROM turns_message m
                     WHERE m.id IN (t.user_message_id, t.assistant_message_id)),
        'steps', coalesce((SELECT json_agg(x.step ORDER BY x.provider, x.tool) FROM (
            SELECT p.sequence AS provider, 0 AS tool,
                json_build_object('id', p.id::text, 'kind', 'provider', 'name', p.model,
                    'state', p.state, 'error_code', nullif(p.error_code, '')) AS step
            FROM turns_providerstep p WHERE p.turn_id = t.id
            UNION ALL
            SELECT p.sequence, q.sequence,
                json_build_object('id', q.id::text, 'kind', 'tool', 'name', q.name,
                    'state', q.state, 'error_code', nullif(q.error_code, ''))
            FROM turns_toolstep q JOIN turns_providerstep p ON p.id = q.provider_step_id
            WHERE q.turn_id = t.id) x), '[]'::json))
"""  # noqa: S608  constants

# --- Statements ---

# Where it says panels, messages, about or active, `_with_panels` puts what the registered ones
# say.
SNAPSHOTS: Final[LiteralString] = f"""
    SELECT s.place, json_build_object('revision', c.revision,
        'conversation', json_build_object(
            'id', c.id::text, 'title', c.title, 'created_at', c.created_at),
        'turn', (SELECT {TURN} FROM turns_turn t WHERE t.conversation_id = c.id
                 ORDER BY t.id DESC LIMIT 1),
        'messages', (SELECT coalesce(json_agg(w.message ORDER BY w.id DESC), '[]'::json) FROM (
            SELECT m.id, {MESSAGE} AS message FROM {MESSAGE_WITH_TURN}
            WHERE m.conversation_id = c.id ORDER BY m.id DESC LIMIT %(limit)s) w),
        'panels', json_build_object(/* panels */))::text
    FROM (SELECT u.*, 0::bigint AS revision
          FROM unnest(%(conversations)s::bigint[], %(owners)s::bigint[])
              WITH ORDINALITY AS u(conversation_id, owner_id, place)) AS s
    JOIN turns_conversation c ON c.id = s.conversation_id AND c.owner_id = s.owner_id
"""  # noqa: S608  constants
# One row for each watched place that still exists. `seqs` and `texts` are what it has not seen
# of the latest turn; `is_known` is false when its cursor names text that is not there.
TEXTS_SEEN: Final[LiteralString] = """
    s.place, c.revision, c.rewritten_revision, t.id, k.seqs, k.texts,
        s.seq = 0 OR EXISTS (SELECT FROM turns_textchunk x
            WHERE x.turn_id = s.turn_id AND x.seq = s.seq) AS is_known
"""
WATCHED: Final[LiteralString] = """
    unnest(%(conversations)s::bigint[], %(owners)s::bigint[], %(revisions)s::bigint[],
           %(turn_ids)s::bigint[], %(seqs)s::int[])
        WITH ORDINALITY AS s(conversation_id, owner_id, revision, turn_id, seq, place)
    JOIN turns_conversation c ON c.id = s.conversation_id AND c.owner_id = s.owner_id
    LEFT JOIN LATERAL (SELECT t.id, t.state FROM turns_turn t WHERE t.conversation_id = c.id
                       ORDER BY t.id DESC LIMIT 1) t ON true
    LEFT JOIN LATERAL (
        SELECT array_agg(k.seq ORDER BY k.seq) AS seqs,
            array_agg(k.text ORDER BY k.seq) AS texts
        FROM turns_textchunk k
        WHERE k.turn_id = t.id AND k.seq > CASE WHEN t.id = s.turn_id THEN s.seq ELSE 0 END
    ) k ON t.state IN ('queued', 'running')
"""
# For a place whose revision has not moved this is all there is. Most reads are of such: to plan
# the other statement takes several times as long.
TEXTS: Final[LiteralString] = f"SELECT {TEXTS_SEEN}, NULL FROM {WATCHED}"  # noqa: S608
CHANGES: Final[LiteralString] = f"""
    SELECT {TEXTS_SEEN},
        CASE WHEN c.revision > s.revision THEN (
            SELECT json_build_object('panels', json_build_object(/* panels */),
                'messages', coalesce((SELECT json_agg({MESSAGE} ORDER BY m.id)
                    FROM {MESSAGE_WITH_TURN}
                    WHERE m.conversation_id = c.id AND m.id IN (/* messages */)), '[]'::json),
                'turns', coalesce(json_agg(x.turn ORDER BY x.id), '[]'::json))
            FROM (SELECT t.id, {TURN} AS turn FROM turns_turn t
                  WHERE t.conversation_id = c.id AND t.id >= s.turn_id
                  ORDER BY t.id DESC LIMIT %(turns)s) x)::text END
    FROM {WATCHED}
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a view has been shown: a revision, its latest turn, and how much of that one's text.

    `offset` counts the characters shown of the chunk after `seq`, for the rare chunk that needs
    more than one frame; `ended` says that the turn's end was shown. Clients keep a cursor as it
    is and hand it back.
    """

    revision: int
    turn_id: int = 0
    seq: int = 0
    offset: int = 0
    ended: bool = False

    def __str__(self) -> str:
        parts = (self.revision, self.turn_id, self.seq, self.offset, int(self.ended))
        return ".".join(map(str, parts))

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """Return the cursor a client handed back, None when it is not one of ours."""
        if CURSOR.fullmatch(text) is None:
            return None
        revision, turn_id, seq, offset, ended = map(int, text.split("."))
        return cls(revision, turn_id, seq, offset, ended=bool(ended))


@dataclass(frozen=True, slots=True)
class Watched:
    """A place somebody looks at, on whose behalf, and what they have seen of it."""

    conversation_id: int
    owner_id: int
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation as it was at one moment.

    `messages` are the newest, newest first: one more than is shown, where there are more.
    """

    revision: int
    conversation: ConversationShape
    turn: TurnView | None
    messages: tuple[MessageView, ...]
    panels: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Change:
    """What is new at a watched place. Empty when nothing is."""

    revision: int
    rewritten_revision: int
    turn_id: int | None
    chunks: tuple[tuple[int, str], ...]
    is_known: bool
    # None when the revision has not moved
    turns: tuple[TurnView, ...] | None
    # those without a turn
    messages: tuple[MessageView, ...]
    panels: dict[str, list[dict[str, Any]]]


def snapshots_statement() -> LiteralString:
    """Return `SNAPSHOTS` with the panels' parts: one row for each place that exists."""
    return _with_panels(SNAPSHOTS)


def changes_statement() -> LiteralString:
    """Return `CHANGES` with the panels' parts: one row for each place that still exists."""
    return _with_panels(CHANGES)


def _with_panels(statement: LiteralString) -> LiteralString:
    objects = ", ".join(
        f"'{p.key}', coalesce(({p.objects_sql}), '[]'::json)" for p in panels.live()
    )
    added = " UNION ALL ".join(f"({p.messages_sql})" for p in panels if p.messages_sql)
    about = "".join(f"({p.about_sql}), " for p in panels if p.about_sql)
    active = "".join(f" OR {p.active_sql}" for p in panels if p.active_sql)
    return (
        statement.replace("/* panels */", objects)
        .replace("/* messages */", added or "NULL")
        .replace("/* about */", about)
        .replace("/* active */", active)
    )


def snapshots_parameters(places: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Return the parameters for the (conversation, owner) pairs in `places`."""
    pairs = list(places)
    return {
        "conversations": [conversation_id for conversation_id, _ in pairs],
        "owners": [owner_id for _, owner_id in pairs],
        "limit": SNAPSHOT_MESSAGES + 1,
    }


def changes_parameters(watched: Sequence[Watched]) -> dict[str, Any]:
    """Return the parameters for everything in `watched`."""
    return {
        "conversations": [w.conversation_id for w in watched],
        "owners": [w.owner_id for w in watched],
        "revisions": [w.cursor.revision for w in watched],
        "turn_ids": [w.cursor.turn_id for w in watched],
        "seqs": [w.cursor.seq for w in watched],
        "turns": MISSED_TURNS_MAX + 1,
    }


def read_snapshot(text: str) -> Snapshot:
    """Return what the second column of `SNAPSHOTS` says."""
    value = json.loads(text)
    return Snapshot(
        revision=value["revision"],
        conversation=ConversationShape.model_validate(value["conversation"]),
        turn=_turn(value["turn"]) if value["turn"] else None,
        messages=read_messages(value["messages"]),
        panels=value["panels"],
    )


def read_change(row: Sequence[Any]) -> Change:
    """Return what a row of `CHANGES` or `TEXTS` says, its place left out."""
    revision, rewritten_revision, turn_id, seqs, texts, is_known, moved = row
    value = json.loads(moved) if moved is not None else None
    return Change(
        revision=revision,
        rewritten_revision=rewritten_revision,
        turn_id=turn_id,
        chunks=tuple(zip(seqs or (), texts or (), strict=True)),
        is_known=is_known,
        turns=None if value is None else tuple(_turn(t) for t in value["turns"]),
        messages=() if value is None else read_messages(value["messages"]),
        panels={} if value is None else value["panels"],
    )


def _turn(value: dict[str, Any]) -> TurnView:
    user, assistant = value["messages"]
    return TurnView.model_validate(
        {**value, "user": user, "assistant": assistant, "seq": assistant["seq"]}
    )


def read_messages(values: Iterable[dict[str, Any]]) -> tuple[MessageView, ...]:
    """Return messages that a statement gave as `MESSAGE`."""
    return tuple(MessageView.model_validate(value) for value in values)


# --- Through Django ---


def snapshot(conversation_id: int, owner_id: int) -> Snapshot | None:
    """Return the conversation as it is now; None when this person has no such conversation."""
    parameters = snapshots_parameters([(conversation_id, owner_id)])
    rows = rows_of(SNAPSHOTS, parameters)
    return read_snapshot(rows[0][1]) if rows else None


def turn(turn_id: int, owner_id: int) -> TurnView | None:
    """Return the turn with its text as far as committed; None when it is not this person's."""
    rows = rows_of(
        f"""SELECT {TURN}::text FROM turns_turn t
            JOIN turns_conversation c ON c.id = t.conversation_id
            WHERE t.id = %(turn)s AND c.owner_id = %(owner)s""",  # noqa: S608  constants
        {"turn": turn_id, "owner": owner_id},
    )
    return _turn(json.loads(rows[0][0])) if rows else None


def message(message_id: int, owner_id: int) -> MessageView | None:
    """Return the message; None when it is not in one of this person's conversations."""
    rows = rows_of(
        f"""SELECT {MESSAGE}::text FROM {MESSAGE_WITH_TURN}
            JOIN turns_conversation c ON c.id = m.conversation_id
            WHERE m.id = %(message)s AND c.owner_id = %(owner)s""",  # noqa: S608  constants
        {"message": message_id, "owner": owner_id},
    )
    return MessageView.model_validate_json(rows[0][0]) if rows else None


def rows_of(statement: LiteralString, parameters: dict[str, Any]) -> list[Sequence[Any]]:
    """Return the rows of a statement, with the panels' parts in it."""
    with connection.cursor() as cursor:
        cursor.execute(_with_panels(statement), parameters)
        return cast(list[Sequence[Any]], cursor.fetchall())
