"""Rows by the thousand, made in the database with its triggers off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

from turns.digests import digest
from turns.limits import Limits

TABLES: Final = (
    "turns_conversation", "turns_message", "turns_turn", "turns_receipt",
    "turns_providerstep", "turns_toolstep", "turns_textchunk", "recovery_recoveryevent",
)  # fmt: skip
CHUNK: Final = "A piece of an answer, as long as a few words are. "

_CONVERSATIONS: Final = """
    INSERT INTO turns_conversation (id, owner_id, title, revision, rewritten_revision)
    SELECT %(first)s + n, %(person)s, '', 1, 0
    FROM generate_series(0, %(conversations)s - 1) AS n
"""
_QUESTIONS: Final = """
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, finished_at)
    SELECT 2 * (%(first)s + n), %(first)s + n / %(each)s, 'user', 'complete', 'A question.',
        %(digest)s, now() FROM generate_series(0, %(turns)s - 1) AS n
"""
_ANSWERS: Final = """
    INSERT INTO turns_message (id, conversation_id, role, state, text, digest, finished_at)
    SELECT 2 * (%(first)s + n) + 1, %(first)s + n / %(each)s, 'assistant',
        CASE WHEN %(ended)s THEN 'complete' ELSE 'streaming' END,
        CASE WHEN %(ended)s THEN repeat(%(chunk)s, 3) ELSE '' END,
        CASE WHEN %(ended)s THEN %(digest)s ELSE '' END,
        CASE WHEN %(ended)s THEN now() END FROM generate_series(0, %(turns)s - 1) AS n
"""
_TURNS: Final = """
    INSERT INTO turns_turn (id, conversation_id, user_message_id, assistant_message_id, state,
        error_code, request_digest, model, limits, owner, generation, claim_token, write_mark,
        attempts, queue_deadline_at, next_dispatch_at, dispatch_count, claimed_at, deadline_at,
        finished_at, late_bytes, late_digest)
    SELECT %(first)s + n, %(first)s + n / %(each)s, 2 * (%(first)s + n),
        2 * (%(first)s + n) + 1, CASE WHEN %(ended)s THEN 'completed' ELSE 'running' END, '',
        %(digest)s, 'scripted', %(limits)s,
        (%(owners)s::uuid[])[1 + n %% cardinality(%(owners)s::uuid[])], 1, gen_random_uuid(),
        1::bigint << 32, 1, now() + interval '5 min', now() + interval '5 s', 0, now(),
        now() + interval '1 hour', CASE WHEN %(ended)s THEN now() END, 0, ''
    FROM generate_series(0, %(turns)s - 1) AS n
"""
_RECEIPTS: Final = """
    INSERT INTO turns_receipt (turn_id, generation, state, error_code, provider_api, model,
        instructions_digest, input_digest, tools_digest, message_count, byte_count, finished_at)
    SELECT %(first)s + n, 1, CASE WHEN %(ended)s THEN 'completed' ELSE 'captured' END, '',
        'responses', 'scripted', %(digest)s, %(digest)s, %(digest)s, 1, 12,
        CASE WHEN %(ended)s THEN now() END FROM generate_series(0, %(turns)s - 1) AS n
"""
_PROVIDER_STEPS: Final = """
    INSERT INTO turns_providerstep (id, turn_id, generation, sequence, state, error_code,
        model, request_digest, request_bytes, offers_tools, anomaly_count, finished_at)
    SELECT %(first)s + n, %(first)s + n, 1, 1,
        CASE WHEN %(ended)s THEN 'completed' ELSE 'started' END, '', 'scripted', %(digest)s,
        12, true, 0, CASE WHEN %(ended)s THEN now() END
    FROM generate_series(0, %(turns)s - 1) AS n
"""
# one that waits to be started and one that runs
_TOOL_STEPS: Final = """
    INSERT INTO turns_toolstep (turn_id, provider_step_id, generation, sequence, state,
        error_code, call_id, item_id, name, effect, arguments, arguments_digest,
        invocation_key, result, result_digest, result_bytes, started_at)
    SELECT %(first)s + n, %(first)s + n, 1, s,
        CASE s WHEN 1 THEN 'running' ELSE 'requested' END, '', 'call-' || s, '',
        'search_history', 'read', '{"query": "x"}', %(digest)s, gen_random_uuid(), '', '', 0,
        CASE s WHEN 1 THEN now() END
    FROM generate_series(0, %(turns)s - 1) AS n, generate_series(1, %(tools)s) AS s
"""
_CHUNKS: Final = """
    INSERT INTO turns_textchunk (turn_id, seq, generation, text)
    SELECT %(first)s + n, s, 1, %(chunk)s
    FROM generate_series(0, %(turns)s - 1) AS n, generate_series(1, %(chunks)s) AS s
"""


@contextmanager
def unguarded() -> Iterator[CursorWrapper]:
    """Give a cursor for which no trigger and no foreign key looks, in one transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("SET LOCAL statement_timeout = 0")
        yield cursor


def running(
    turns: int,
    *,
    first: int,
    person: int,
    owners: Sequence[UUID],
    chunks: int = 0,
    tools: int = 0,
    asked: bool = True,
) -> None:
    """Add running turns with the ids from `first` on, each in a conversation of its id."""
    with unguarded() as cursor:
        _fill(cursor, turns, first=first, person=person, owners=owners, each=1, ended=False,
              chunks=chunks, tools=tools, asked=asked)  # fmt: skip


def finished(turns: int, *, first: int, person: int, owners: Sequence[UUID]) -> None:
    """Add completed turns, ten in each conversation."""
    with unguarded() as cursor:
        _fill(cursor, turns, first=first, person=person, owners=owners, each=10, ended=True,
              chunks=0, tools=0, asked=True)  # fmt: skip


def _fill(
    cursor: CursorWrapper,
    turns: int,
    *,
    first: int,
    person: int,
    owners: Sequence[UUID],
    each: int,
    ended: bool,
    chunks: int,
    tools: int,
    asked: bool,
) -> None:
    values: dict[str, Any] = {
        "first": first,
        "turns": turns,
        "each": each,
        "conversations": -(-turns // each),
        "person": person,
        "owners": [str(owner) for owner in owners],
        "ended": ended,
        "chunks": chunks,
        "tools": tools,
        "chunk": CHUNK,
        "digest": digest("A question."),
        "limits": json.dumps(Limits().snapshot()),
    }
    statements = [_CONVERSATIONS, _QUESTIONS, _ANSWERS, _TURNS]
    if asked:
        statements += [_RECEIPTS, _PROVIDER_STEPS, _TOOL_STEPS]
    for statement in [*statements, _CHUNKS]:
        cursor.execute(statement, values)


def settle_down() -> None:
    """Give the planner its statistics, and start without dirty pages or a checkpoint due."""
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ANALYZE {table}")
        cursor.execute("CHECKPOINT")


def vacuum() -> None:
    """What autovacuum would have done some time after a large fill."""
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        for table in TABLES:
            cursor.execute(f"VACUUM (ANALYZE) {table}")
        cursor.execute("SET statement_timeout = DEFAULT")


def empty() -> None:
    """Remove every row of the turns' tables."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(TABLES)} RESTART IDENTITY CASCADE")
