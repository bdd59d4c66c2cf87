"""Messages that lack what they should have are found a page at a time, and given a job.

The triggers on messages leave nothing to find here but what was said before a manifest was
begun, or was changed behind their back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, transaction

from recovery.blanks import has_words
from semantic import bounds
from semantic.models import Manifest
from semantic.models.messages import (
    CLEAR_VECTORS_SQL,
    CLEAR_WORDS_SQL,
    HOLD_JOBS_SQL,
    INVALIDATE_SQL,
    JOBS_SQL,
    WORDS_SQL,
)

# Of the message `m`, under one manifest: its last job and its vector.
_WHAT_IS: Final = """
    LEFT JOIN LATERAL (
        SELECT j.state, j.digest FROM semantic_semanticjob j
        WHERE j.conversation_id = m.conversation_id AND j.message_id = m.id
            AND j.manifest_id = %(manifest)s
        ORDER BY j.id DESC LIMIT 1
    ) AS last ON true
    LEFT JOIN semantic_embedding e ON e.conversation_id = m.conversation_id
        AND e.message_id = m.id AND e.manifest_id = %(manifest)s
"""
# Derived from what the message said before. The triggers leave none.
_IS_STALE: Final = """
    (e.digest <> m.digest OR last.digest <> m.digest AND last.state <> 'invalidated')
"""
# A job that failed, or was invalidated while its message stayed as it was, ended on purpose.
_LACKS: Final = f"""
    (m.state <> 'streaming' AND e.id IS NULL AND (last.digest IS NULL
        OR last.digest <> m.digest OR last.state = 'completed') AND {has_words("m.text")})
"""
_PAGE: Final = f"""
    SELECT count(*), max(m.id),
        array_agg(m.id ORDER BY m.id) FILTER (WHERE {_IS_STALE}),
        array_agg(m.id ORDER BY m.id) FILTER (
            WHERE NOT coalesce({_IS_STALE}, false) AND {_LACKS})
    FROM (
        SELECT id, conversation_id, state, digest, text FROM turns_message
        WHERE id > %(after)s ORDER BY id LIMIT {bounds.RECONCILE_ROWS}
    ) AS m {_WHAT_IS}
"""  # noqa: S608  constants
_STILL_STALE: Final = f"""
    SELECT m.id, m.conversation_id FROM turns_message m {_WHAT_IS}
    WHERE m.id = ANY(%(ids)s) AND {_IS_STALE} ORDER BY m.id
"""  # noqa: S608  constants
_HOLD: Final = "SELECT id FROM turns_message WHERE id = ANY(%s) ORDER BY id "
_THEIRS: Final = {"ids": "%(ids)s::bigint[]", "conversations": "%(conversations)s::bigint[]"}
_ENQUEUE: Final = f"""
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
            digest, state, error_code, round, attempts, write_mark)
    SELECT %(manifest)s, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0
    FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id {_WHAT_IS}
    WHERE m.id = ANY(%(ids)s) AND {_LACKS} ORDER BY m.id
    ON CONFLICT DO NOTHING
"""  # noqa: S608  constants
# A message that was forgotten has its words back with its vector.
_WITHOUT_WORDS: Final = """
    m.id = ANY(%(ids)s)
        AND NOT EXISTS (SELECT FROM semantic_messagewords w WHERE w.message_id = m.id)
"""
_MOVE_ON: Final = """
    UPDATE semantic_manifest SET scanned_to = %(to)s,
        covered_at = CASE WHEN %(ended)s THEN coalesce(covered_at, statement_timestamp())
            ELSE covered_at END
    WHERE id = %(manifest)s AND scanned_to = %(after)s AND state <> 'retired'
"""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look at one page came to; `covered` says that all were looked at once."""

    enqueued: int
    repaired: int
    covered: bool


@transaction.atomic(durable=True)
def look_on(manifest_id: int) -> Looked:
    """Look at the next page of messages, give those a job that lack what the manifest should
    have of them, and derive anew what is stale. Safe twice and side by side.

    Messages that somebody is changing just now are left for the next look.
    """
    manifest = (
        Manifest.objects.filter(pk=manifest_id).exclude(state=Manifest.State.RETIRED).first()
    )
    if manifest is None:
        return Looked(0, 0, covered=True)
    place: dict[str, Any] = {"manifest": manifest_id, "after": manifest.scanned_to}
    with connection.cursor() as cursor:
        cursor.execute(_PAGE, place)
        count, last, stale, lacking = cursor.fetchone()
        repaired = _repair(manifest_id, stale or [])
        held = _hold_free(lacking or [])
        left = next((pk for pk in lacking or [] if pk not in held), None)
        enqueued = _enqueue(manifest_id, sorted(held))
        ended = left is None and count < bounds.RECONCILE_ROWS
        to = 0 if ended else (last if left is None else left - 1)
        cursor.execute(_MOVE_ON, place | {"to": to, "ended": ended})
    return Looked(enqueued, repaired, covered=ended or manifest.covered_at is not None)


def _hold_free(ids: list[int]) -> set[int]:
    """Lock those messages that nobody is changing; if there are none, wait for the first.

    Another look at them, and what is derived of them, wait until this one has enqueued: its
    statement does not see what became of jobs that were made while it was under way.

    Who waits for one while it holds others waits for ever when the other has them in another
    order, as the removal of a conversation may.
    """
    if not ids:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(_HOLD + "FOR NO KEY UPDATE SKIP LOCKED", [ids])
        held = {pk for (pk,) in cursor.fetchall()}
        if not held:
            cursor.execute(_HOLD + "FOR NO KEY UPDATE", [[ids[0]]])
            held = {ids[0]}
    return held


def _enqueue(manifest_id: int, ids: list[int]) -> int:
    """Enqueue what these locked messages lack, in a statement that sees what changed before
    they were locked."""
    if not ids:
        return 0
    these: dict[str, Any] = {"manifest": manifest_id, "ids": ids}
    with connection.cursor() as cursor:
        cursor.execute(_ENQUEUE, these)
        enqueued: int = cursor.rowcount
        cursor.execute(WORDS_SQL.format(said="turns_message", which=_WITHOUT_WORDS), these)
    return enqueued


def _repair(manifest_id: int, ids: list[int]) -> int:
    """Do for stale messages what their triggers would have done."""
    if not ids:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(_HOLD + "FOR NO KEY UPDATE SKIP LOCKED", [ids])
        held = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(_STILL_STALE, {"manifest": manifest_id, "ids": held})
        found = cursor.fetchall()
        theirs = {"ids": [row[0] for row in found], "conversations": [row[1] for row in found]}
        for statement in (HOLD_JOBS_SQL, INVALIDATE_SQL, CLEAR_VECTORS_SQL, CLEAR_WORDS_SQL):
            cursor.execute(statement.format(**_THEIRS), theirs)
        for statement in (WORDS_SQL, JOBS_SQL):
            which = "m.id = ANY(%(ids)s)"
            cursor.execute(statement.format(said="turns_message", which=which), theirs)
    return len(found)
