"""What was derived from one message is removed on request; the message stays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction

from semantic.models.messages import (
    CLEAR_VECTORS_SQL,
    CLEAR_WORDS_SQL,
    HOLD_JOBS_SQL,
    INVALIDATE_SQL,
)
from turns.models import Message

_ARRAYS: Final = {"ids": "%(ids)s::bigint[]", "conversations": "%(conversations)s::bigint[]"}
# One receipt for each job that held or was about to give the message a vector.
_FORGET_JOBS: Final = f"""
    WITH forgotten AS (
        {INVALIDATE_SQL.format(**_ARRAYS)}
        RETURNING id, message_id, manifest_id, attempts, state
    ), told AS (
        INSERT INTO semantic_semanticreceipt (job_id, message_id, manifest_generation, attempt,
            outcome, error_code)
        SELECT f.id, f.message_id, p.generation, f.attempts, 'invalidated', ''
        FROM forgotten f JOIN semantic_manifest p ON p.id = f.manifest_id
        WHERE f.state = 'invalidated'
        ON CONFLICT DO NOTHING
    )
    SELECT count(*) FILTER (WHERE state = 'invalidated') FROM forgotten
"""  # noqa: S608  constants


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many vectors were removed, and how many jobs invalidated."""

    embeddings: int
    jobs: int


@transaction.atomic(durable=True)
def forget(message_id: int) -> Forgotten:
    """Remove the vectors and words of the message and invalidate its jobs.

    It is not found again until it is changed, or everything is derived anew. Of a message that
    is not there nothing is removed.
    """
    message = (
        Message.objects.select_for_update(no_key=True)
        .filter(pk=message_id)
        .only("conversation_id")
        .first()
    )
    if message is None:
        return Forgotten(0, 0)
    theirs = {"ids": [message.pk], "conversations": [message.conversation_id]}
    with connection.cursor() as cursor:
        cursor.execute(HOLD_JOBS_SQL.format(**_ARRAYS), theirs)
        cursor.execute(_FORGET_JOBS, theirs)
        (jobs,) = cursor.fetchone()
        cursor.execute(CLEAR_VECTORS_SQL.format(**_ARRAYS), theirs)
        embeddings = cursor.rowcount
        cursor.execute(CLEAR_WORDS_SQL.format(**_ARRAYS), theirs)
    return Forgotten(embeddings, jobs)
