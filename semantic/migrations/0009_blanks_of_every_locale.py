import pgtrigger.compiler
import pgtrigger.migrations
import recovery.triggers
from django.db import migrations


class Migration(migrations.Migration):
    """A message is blank where Python says so, whatever the locale of the database."""

    dependencies = [
        ('semantic', '0008_ids_are_fixed'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='indexedmessage',
            name='is_indexed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='indexedmessage',
            name='is_indexed_anew',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='indexedmessage',
            trigger=pgtrigger.compiler.Trigger(name='is_indexed', sql=recovery.triggers.ConstantTriggerSql(func="\n    \n    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)\n        SELECT m.id, m.conversation_id, c.owner_id, strip(to_tsvector('simple', m.text))\n            || array_to_tsvector(ARRAY[('person ' || c.owner_id)])\n        FROM fresh m JOIN turns_conversation c ON c.id = m.conversation_id\n        WHERE m.state = 'complete' AND btrim(m.text, E'\\u0009\\u000a\\u000b\\u000c\\u000d\\u001c\\u001d\\u001e\\u001f\\u0020\\u0085\\u00a0\\u1680\\u2000\\u2001\\u2002\\u2003\\u2004\\u2005\\u2006\\u2007\\u2008\\u2009\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000') <> '' AND true ORDER BY m.id\n;\n    \n    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,\n            digest, state, error_code, round, attempts, write_mark)\n        SELECT p.id, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0\n        FROM fresh m JOIN turns_conversation c ON c.id = m.conversation_id\n            CROSS JOIN semantic_manifest p\n        WHERE m.state <> 'streaming' AND btrim(m.text, E'\\u0009\\u000a\\u000b\\u000c\\u000d\\u001c\\u001d\\u001e\\u001f\\u0020\\u0085\\u00a0\\u1680\\u2000\\u2001\\u2002\\u2003\\u2004\\u2005\\u2006\\u2007\\u2008\\u2009\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000') <> ''\n            AND p.state IN ('building', 'active') AND true ORDER BY m.id, p.id\n;\n    RETURN NULL;\n", hash='fe9af69812b6feb913d2c5cfd59229d931cadef0', level='STATEMENT', operation='INSERT', pgid='pgtrigger_is_indexed_dfc47', referencing='REFERENCING NEW TABLE AS fresh ', table='turns_message', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='indexedmessage',
            trigger=pgtrigger.compiler.Trigger(name='is_indexed_anew', sql=recovery.triggers.ConstantTriggerSql(declare='DECLARE changed bigint[]; ids bigint[]; conversations bigint[];', func="\n    SELECT array_agg(n.id), array_agg(n.id) FILTER (WHERE o.state <> 'streaming'),\n            array_agg(n.conversation_id) FILTER (WHERE o.state <> 'streaming')\n        INTO changed, ids, conversations\n        FROM after_it n JOIN before_it o ON o.id = n.id\n        WHERE n.digest <> o.digest OR n.state <> o.state OR n.text <> o.text;\n    IF changed IS NULL THEN RETURN NULL; END IF;\n    IF ids IS NOT NULL THEN\n        PERFORM id FROM (\n    SELECT id FROM semantic_semanticjob WHERE \n    (conversation_id, message_id) IN (SELECT * FROM unnest(conversations, ids))\n ORDER BY id FOR NO KEY UPDATE\n) AS held;\n        \n    UPDATE semantic_semanticjob\n    SET state = CASE state WHEN 'failed' THEN state ELSE 'invalidated' END, retry_at = NULL,\n        finished_at = coalesce(finished_at, statement_timestamp()),\n        write_mark = (attempts::bigint << 32)\n            | ((write_mark + 1) & 4294967295)\n    WHERE \n    (conversation_id, message_id) IN (SELECT * FROM unnest(conversations, ids))\n\n        AND (state IN ('queued', 'running', 'completed') OR retry_at IS NOT NULL)\n;\n        DELETE FROM semantic_embedding WHERE \n    (conversation_id, message_id) IN (SELECT * FROM unnest(conversations, ids))\n;\n        DELETE FROM semantic_messagewords WHERE message_id = ANY(ids);\n    END IF;\n    \n    INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)\n        SELECT m.id, m.conversation_id, c.owner_id, strip(to_tsvector('simple', m.text))\n            || array_to_tsvector(ARRAY[('person ' || c.owner_id)])\n        FROM after_it m JOIN turns_conversation c ON c.id = m.conversation_id\n        WHERE m.state = 'complete' AND btrim(m.text, E'\\u0009\\u000a\\u000b\\u000c\\u000d\\u001c\\u001d\\u001e\\u001f\\u0020\\u0085\\u00a0\\u1680\\u2000\\u2001\\u2002\\u2003\\u2004\\u2005\\u2006\\u2007\\u2008\\u2009\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000') <> '' AND m.id IN (SELECT unnest(changed)) ORDER BY m.id\n;\n    \n    INSERT INTO semantic_semanticjob (manifest_id, message_id, conversation_id, person_id,\n            digest, state, error_code, round, attempts, write_mark)\n        SELECT p.id, m.id, m.conversation_id, c.owner_id, m.digest, 'queued', '', 1, 0, 0\n        FROM after_it m JOIN turns_conversation c ON c.id = m.conversation_id\n            CROSS JOIN semantic_manifest p\n        WHERE m.state <> 'streaming' AND btrim(m.text, E'\\u0009\\u000a\\u000b\\u000c\\u000d\\u001c\\u001d\\u001e\\u001f\\u0020\\u0085\\u00a0\\u1680\\u2000\\u2001\\u2002\\u2003\\u2004\\u2005\\u2006\\u2007\\u2008\\u2009\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000') <> ''\n            AND p.state IN ('building', 'active') AND m.id IN (SELECT unnest(changed)) ORDER BY m.id, p.id\n;\n    RETURN NULL;\n", hash='dc62767bbe5aafa0ceaf93366ff450ebf10cff70', level='STATEMENT', operation='UPDATE', pgid='pgtrigger_is_indexed_anew_04c51', referencing='REFERENCING OLD TABLE AS before_it  NEW TABLE AS after_it ', table='turns_message', when='AFTER')),
        ),
    ]
