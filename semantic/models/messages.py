"""What the table of messages does for search, whoever writes to it.

Statement triggers, so that no code path can forget, and raw SQL cannot either. The message is
locked by the statement itself; then come its jobs, then its vectors. The other order lets a
persist that waits for its job go on after its vector's place was cleared (design section 6).
"""

from __future__ import annotations

from typing import Final

import pgtrigger

from recovery.fences import GENERATION_SHIFT_BITS, WRITE_COUNT_MASK
from turns.models import Message

# An entry that the parser makes of no text, as it has a space in it.
PERSON_LEXEME_SQL: Final = "('person ' || {person})"

_HOLD_JOBS: Final = """
    PERFORM j.id FROM semantic_semanticjob j WHERE j.message_id = ANY(ids)
        ORDER BY j.id FOR NO KEY UPDATE;
"""
# Also run by what forgets a message on request (semantic/transitions/forgetting.py).
INVALIDATE_SQL: Final = f"""
    UPDATE semantic_semanticjob SET state = 'invalidated',
        finished_at = coalesce(finished_at, statement_timestamp()),
        write_mark = (attempts::bigint << {GENERATION_SHIFT_BITS})
            | ((write_mark + 1) & {WRITE_COUNT_MASK})
        WHERE message_id = ANY({{ids}}) AND state IN ('queued', 'running', 'completed')
"""  # noqa: S608  constants
_CLEAR: Final = """
    DELETE FROM semantic_embedding WHERE message_id = ANY(ids);
    DELETE FROM semantic_messagewords WHERE message_id = ANY(ids);
"""
# Full text holds complete messages, vectors all that have ended. A blank text has nothing to
# be found by.
WORDS_SQL: Final = f"""
    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)
        SELECT m.id, m.conversation_id, c.owner_id, strip(to_tsvector('simple', m.text))
            || array_to_tsvector(ARRAY[{PERSON_LEXEME_SQL.format(person="c.owner_id")}])
        FROM {{said}} m JOIN turns_conversation c ON c.id = m.conversation_id
        WHERE m.state = 'complete' AND m.text ~ '\\S' AND {{which}} ORDER BY m.id
"""  # noqa: S608  constants
JOBS_SQL: Final = """
    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,
            digest, state, error_code, round, attempts, write_mark)
        SELECT p.id, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0
        FROM {said} m JOIN turns_conversation c ON c.id = m.conversation_id
            CROSS JOIN semantic_manifest p
        WHERE m.state <> 'streaming' AND m.text ~ '\\S'
            AND p.state IN ('building', 'active') AND {which} ORDER BY m.id, p.id
"""
_INSERTED: Final = f"""
    {WORDS_SQL.format(said="fresh", which="true")};
    {JOBS_SQL.format(said="fresh", which="true")};
    RETURN NULL;
"""
# What an update may mean for search: a message came to its end, or says something else now.
_UPDATED: Final = f"""
    SELECT coalesce(array_agg(n.id), '{{}}') INTO ids
        FROM after_it n JOIN before_it o ON o.id = n.id
        WHERE n.digest <> o.digest OR n.state <> o.state OR n.text <> o.text;
    IF ids = '{{}}' THEN RETURN NULL; END IF;
    {_HOLD_JOBS}
    {INVALIDATE_SQL.format(ids="ids")};
    {_CLEAR}
    {WORDS_SQL.format(said="after_it", which="m.id = ANY(ids)")};
    {JOBS_SQL.format(said="after_it", which="m.id = ANY(ids)")};
    RETURN NULL;
"""  # noqa: S608  constants
_DELETED: Final = f"""
    SELECT array_agg(id) INTO ids FROM before_it;
    {_HOLD_JOBS}
    DELETE FROM semantic_semanticjob WHERE message_id = ANY(ids);
    {_CLEAR}
    RETURN NULL;
"""  # noqa: S608  constants


class IndexedMessage(Message):
    """A message, as it is seen by what makes it searchable."""

    class Meta:
        proxy = True
        triggers = [
            pgtrigger.Trigger(
                name="is_indexed",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Insert,
                referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
                func=_INSERTED,
            ),
            pgtrigger.Trigger(
                name="is_indexed_anew",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                referencing=pgtrigger.Referencing(  # type: ignore[no-untyped-call]
                    old="before_it", new="after_it"
                ),
                declare=[("ids", "bigint[]")],
                func=_UPDATED,
            ),
            pgtrigger.Trigger(
                name="is_forgotten",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                referencing=pgtrigger.Referencing(old="before_it"),  # type: ignore[no-untyped-call]
                declare=[("ids", "bigint[]")],
                func=_DELETED,
            ),
        ]

    def __str__(self) -> str:
        return f"message {self.pk}"
