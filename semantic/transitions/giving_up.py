"""What a manifest has given up, and whether it is too much to take another's place.

A message is given up when its last round failed, or its text was to blame. That is judged as a
whole: a text may be one that nobody can embed, but where all texts are, the provider is broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, transaction

from recovery.errors import ErrorCode
from semantic import bounds
from semantic.transitions.outcomes import NOT_TRIED_AGAIN

# They speak of one text. Any other says that the provider was not there for it.
_OF_THE_TEXT: Final = (
    ErrorCode.TEXT_NOT_EMBEDDABLE,
    ErrorCode.SEMANTIC_ATTEMPTS_EXHAUSTED,
    ErrorCode.PROVIDER_REJECTED,
    ErrorCode.PROVIDER_CONTEXT_EXCEEDED,
)
# Of each message that still says the same, the last failure that no other job was to follow. It
# stands until a later job succeeds: one that only waits has not shown anything. What was
# forgotten on request is not missed.
_GIVEN_UP: Final = f"""
    SELECT DISTINCT ON (j.conversation_id, j.message_id) j.id, j.conversation_id, j.message_id,
        j.error_code <> ALL(%(of_the_text)s) AS let_down
    FROM semantic_semanticjob j
        JOIN turns_message m ON m.id = j.message_id AND m.digest = j.digest
    WHERE j.manifest_id = %(manifest)s AND j.state = 'failed'
        AND (j.round = {bounds.ROUNDS_AFTER_FAILURE + 1} OR j.error_code = ANY(%(final)s))
        AND (m.state <> 'complete'
            OR EXISTS (SELECT FROM semantic_messagewords w WHERE w.message_id = m.id))
        AND NOT EXISTS (
            SELECT FROM semantic_semanticjob n
            WHERE n.conversation_id = j.conversation_id AND n.message_id = j.message_id
                AND (n.manifest_id = j.manifest_id AND n.id > j.id AND n.state = 'completed'
                    OR n.digest = j.digest AND n.state = 'invalidated'))
    ORDER BY j.conversation_id, j.message_id, j.id DESC
"""  # noqa: S608  constants
# The vectors that answer are counted no further than matters.
_SHORTFALL: Final = f"""
    WITH given_up AS MATERIALIZED ({_GIVEN_UP}),
    answering AS MATERIALIZED (
        SELECT id FROM semantic_manifest WHERE state = 'active' AND id <> %(manifest)s
    ), lost AS MATERIALIZED (
        SELECT count(*) AS count FROM given_up g JOIN semantic_embedding e
            ON e.conversation_id = g.conversation_id AND e.message_id = g.message_id
                AND e.manifest_id = (SELECT id FROM answering)
    )
    SELECT (SELECT count(*) FROM given_up WHERE let_down AND EXISTS (SELECT FROM answering)),
        (SELECT count FROM lost),
        (SELECT count(*) FROM (
            SELECT FROM semantic_embedding WHERE manifest_id = (SELECT id FROM answering)
            LIMIT (SELECT greatest(1, count * {bounds.SWAP_LOST_ONE_IN}) FROM lost)
        ) AS counted),
        EXISTS (SELECT FROM semantic_embedding WHERE manifest_id = %(manifest)s)
"""  # noqa: S608  constants
# Of those that keep it from taking over, what has had its pause: all that the provider was not
# there for, and what was refused if that was too much.
_DUE: Final = f"""
    SELECT j.id, j.message_id FROM ({_GIVEN_UP}) AS g
        JOIN semantic_semanticjob j ON j.id = g.id
    WHERE (g.let_down OR %(too_many)s)
        AND j.finished_at <= statement_timestamp() - %(pause)s * interval '1 second'
        AND NOT EXISTS (
            SELECT FROM semantic_semanticjob n WHERE n.conversation_id = j.conversation_id
                AND n.message_id = j.message_id AND n.manifest_id = j.manifest_id
                AND n.id > j.id)
    ORDER BY j.id LIMIT {bounds.RECONCILE_ROWS}
"""  # noqa: S608  constants
_HOLD_MESSAGES: Final = """
    SELECT id FROM turns_message WHERE id = ANY(%s) ORDER BY id FOR SHARE SKIP LOCKED
"""
_HOLD_JOBS: Final = """
    SELECT id FROM semantic_semanticjob WHERE id = ANY(%s) AND message_id = ANY(%s)
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
# In a statement that sees what whoever held them before has enqueued.
_BEGIN_ANEW: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
            digest, state, error_code, round, attempts, write_mark)
    SELECT j.manifest_id, j.message_id, j.conversation_id, j.person_id, j.digest, 'queued', '',
        1, 0, 0
    FROM semantic_semanticjob j JOIN turns_message m ON m.id = j.message_id
        JOIN semantic_manifest p ON p.id = j.manifest_id
    WHERE j.id = ANY(%s) AND m.digest = j.digest AND p.state = 'building' AND NOT EXISTS (
        SELECT FROM semantic_semanticjob n WHERE n.conversation_id = j.conversation_id
            AND n.message_id = j.message_id AND n.manifest_id = j.manifest_id AND n.id > j.id)
    ORDER BY j.id ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What would not be found if a manifest took over now. Where none answers, that is nothing.

    `let_down` messages have no vector because the provider was not there for them to the last.
    `lost` ones were given up, whatever for, and have one in the manifest that answers; it has
    `answering` vectors, as far as that matters. `has_vectors`: whether it has any itself.
    """

    let_down: int
    lost: int
    answering: int
    has_vectors: bool

    @property
    def loses_too_many(self) -> bool:
        """Whether it is about more than a few texts."""
        if not self.has_vectors:
            return self.answering > 0
        return (
            self.lost > bounds.SWAP_LOST_MAX
            and self.lost * bounds.SWAP_LOST_ONE_IN > self.answering
        )

    @property
    def is_too_much(self) -> bool:
        """Whether what answers must go on answering."""
        return self.let_down > 0 or self.loses_too_many

    @property
    def stands(self) -> bool:
        """Whether that is how it ended, rather than on its way."""
        return self.is_too_much and self.let_down + self.lost > 0

    @property
    def words(self) -> str:
        """Why it does not take over; empty if nothing of this keeps it."""
        if self.loses_too_many:
            return (
                f"it gave up {self.lost} messages that the answering manifest has vectors of"
                if self.has_vectors
                else "it has no vector at all, and the answering manifest has some"
            )
        if self.let_down:
            return f"the provider was not there for {self.let_down} messages to the last"
        return ""


def shortfall(manifest_id: int) -> Shortfall:
    """Return what the manifest lacks of what answers. It reads all of its jobs."""
    with connection.cursor() as cursor:
        cursor.execute(_SHORTFALL, _parameters(manifest_id))
        return Shortfall(*cursor.fetchone())


@transaction.atomic(durable=True)
def begin_anew(manifest_id: int, *, pause_seconds: float = bounds.ANEW_SECONDS) -> int:
    """Enqueue, in their first round, some of the messages that were given up and keep the
    manifest from taking over; return how many. Each `pause_seconds` after it was given up."""
    too_many = shortfall(manifest_id).loses_too_many
    due = {"too_many": too_many, "pause": pause_seconds}
    with connection.cursor() as cursor:
        cursor.execute(_DUE, _parameters(manifest_id) | due)
        jobs = dict(cursor.fetchall())
        cursor.execute(_HOLD_MESSAGES, [list(jobs.values())])
        messages = [pk for (pk,) in cursor.fetchall()]
        cursor.execute(_HOLD_JOBS, [list(jobs), messages])
        cursor.execute(_BEGIN_ANEW, [[pk for (pk,) in cursor.fetchall()]])
        begun: int = cursor.rowcount
    return begun


def _parameters(manifest_id: int) -> dict[str, Any]:
    return {
        "manifest": manifest_id,
        "of_the_text": [code.value for code in _OF_THE_TEXT],
        "final": [code.value for code in NOT_TRIED_AGAIN],
    }
