"""What the table of messages does for search, whoever writes to it.

Statement triggers that cannot be ignored, so that no code path can forget, and raw SQL cannot
either. The message is locked by the statement itself; then come its jobs, then its vectors. The
other order lets a persist that waits for its job go on after its vector's place was cleared
(design section 6).

The SQL is shared with what forgets, enqueues and repairs (semantic/transitions).
"""

from __future__ import annotations

from typing import Final

import pgtrigger

from recovery.blanks import has_words
from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK
from recovery.triggers import ConstantTrigger
from turns.models import Message

# An entry that the parser makes of no text, as it has a space in it.
PERSON_LEXEME_SQL: Final = "('person ' || {person})"

# Pairs, as the indexes have them.
_OF_THEM: Final = """
    (conversation_id, message_id) IN (SELECT * FROM unnest({conversations}, {ids}))
"""
HOLD_JOBS_SQL: Final = f"""
    SELECT id FROM semantic_semanticjob WHERE {_OF_THEM} ORDER BY id FOR NO KEY UPDATE
"""  # noqa: S608  constants
# What has ended stays as it ended, but no other job follows it.
INVALIDATE_SQL: Final = f"""
    UPDATE semantic_semanticjob
    SET state = CASE state WHEN 'failed' THEN state ELSE 'invalidated' END, retry_at = NULL,
        finished_at = coalesce(finished_at, statement_timestamp()),
        write_mark = (attempts::bigint << {GENERATION_SHIFT_BITS})
            | ((write_mark + 1) & {WRITE_COUNT_MASK})
    WHERE {_OF_THEM}
        AND (state IN ('queued', 'running', 'completed') OR retry_at IS NOT NULL)
"""  # noqa: S608  constants
CLEAR_VECTORS_SQL: Final = f"DELETE FROM semantic_embedding WHERE {_OF_THEM}"  # noqa: S608
CLEAR_WORDS_SQL: Final = "DELETE FROM semantic_messagewords WHERE message_id = ANY({ids})"
# Full text holds complete messages, vectors all that have ended. A blank text has nothing to
# be found by.
WORDS_SQL: Final = f"""
    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)
        SELECT m.id, m.conversation_id, c.owner_id, strip(to_tsvector('simple', m.text))
            || array_to_tsvector(ARRAY[{PERSON_LEXEME_SQL.format(person="c.owner_id")}])
        FROM {{said}} m JOIN turns_conversation c ON c.id = m.conversation_id
        WHERE m.state = 'complete' AND {has_words("m.text")} AND {{which}} ORDER BY m.id
"""  # noqa: S608  constants
JOBS_SQL: Final = f"""
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
            digest, state, error_code, round, attempts, write_mark)
        SELECT p.id, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0
        FROM {{said}} m JOIN turns_conversation c ON c.id = m.conversation_id
            CROSS JOIN semantic_manifest p
        WHERE m.state <> 'streaming' AND {has_words("m.text")}
            AND p.state IN ('building', 'active') AND {{which}} ORDER BY m.id, p.id
"""  # noqa: S608  constants
_ARRAYS: Final = {"ids": "ids", "conversations": "conversations"}
_INSERTED: Final = f"""
    {WORDS_SQL.format(said="fresh", which="true")};
    {JOBS_SQL.format(said="fresh", which="true")};
    RETURN NULL;
"""
# What an update may mean for search: a message came to its end, or says something else now.
# Nothing was derived from one that was still streaming: the end of an answer pays for no look.
_UPDATED: Final = f"""
    SELECT array_agg(n.id), array_agg(n.id) FILTER (WHERE o.state <> 'streaming'),
            array_agg(n.conversation_id) FILTER (WHERE o.state <> 'streaming')
        INTO changed, ids, conversations
        FROM after_it n JOIN before_it o ON o.id = n.id
        WHERE n.digest <> o.digest OR n.state <> o.state OR n.text <> o.text;
    IF changed IS NULL THEN RETURN NULL; END IF;
    IF ids IS NOT NULL THEN
        PERFORM id FROM ({HOLD_JOBS_SQL.format(**_ARRAYS)}) AS held;
        {INVALIDATE_SQL.format(**_ARRAYS)};
        {CLEAR_VECTORS_SQL.format(**_ARRAYS)};
        {CLEAR_WORDS_SQL.format(**_ARRAYS)};
    END IF;
    {WORDS_SQL.format(said="after_it", which="m.id IN (SELECT unnest(changed))")};
    {JOBS_SQL.format(said="after_it", which="m.id IN (SELECT unnest(changed))")};
    RETURN NULL;
"""  # noqa: S608  constants
_DELETED: Final = f"""
    SELECT array_agg(id), array_agg(conversation_id) INTO ids, conversations FROM before_it;
    PERFORM id FROM ({HOLD_JOBS_SQL.format(**_ARRAYS)}) AS held;
    DELETE FROM semantic_semanticjob WHERE {_OF_THEM.format(**_ARRAYS)};
    {CLEAR_VECTORS_SQL.format(**_ARRAYS)};
    {CLEAR_WORDS_SQL.format(**_ARRAYS)};
    RETURN NULL;
"""  # noqa: S608  constants
_IDS: Final = [("ids", "bigint[]"), ("conversations", "bigint[]")]


class IndexedMessage(Message):
    """A message, as it is seen by what makes it searchable."""

    class Meta:
        proxy = True
        triggers = [
            ConstantTrigger(
                name="is_indexed",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
                func=_INSERTED,
            ),
            ConstantTrigger(
                name="is_indexed_anew",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                referencing=pgtrigger.Referencing(  # type: ignore[no-untyped-call]
                    old="before_it", new="after_it"
                ),
                declare=[("changed", "bigint[]"), *_IDS],
                func=_UPDATED,
            ),
            ConstantTrigger(
                name="is_forgotten",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                referencing=pgtrigger.Referencing(old="before_it"),  # type: ignore[no-untyped-call]
                declare=_IDS,
                func=_DELETED,
            ),
        ]

    def __str__(self) -> str:
        return f"message {self.pk}"
