import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """The fence of children looks at what is presented and at its parents in one query."""

    dependencies = [
        ('turns', '0006_message_in_conversation'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='providerstep',
            name='child_fence',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='receipt',
            name='child_fence',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='textchunk',
            name='child_fence',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='toolstep',
            name='child_fence',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='providerstep',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((turn_id, generation) IN (\n                    SELECT p.id, p.generation FROM turns_turn AS p\n                    WHERE p.id = ANY (ARRAY(SELECT turn_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_providerstep_child_fence', MESSAGE = 'turns_providerstep_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='35190132a8699e2e45a0b858d7086aff9f46a34e', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_f68cb', referencing='REFERENCING NEW TABLE AS fresh ', table='turns_providerstep', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='receipt',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((turn_id, generation) IN (\n                    SELECT p.id, p.generation FROM turns_turn AS p\n                    WHERE p.id = ANY (ARRAY(SELECT turn_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_receipt_child_fence', MESSAGE = 'turns_receipt_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='e3eff121a144db2c710701169332c6bd708f6851', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_de3ae', referencing='REFERENCING NEW TABLE AS fresh ', table='turns_receipt', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='textchunk',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((turn_id, generation) IN (\n                    SELECT p.id, p.generation FROM turns_turn AS p\n                    WHERE p.id = ANY (ARRAY(SELECT turn_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_textchunk_child_fence', MESSAGE = 'turns_textchunk_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='298de49b6d224b652a90af05a195a613082879fc', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_0379d', referencing='REFERENCING NEW TABLE AS fresh ', table='turns_textchunk', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='toolstep',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=pgtrigger.compiler.UpsertTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((turn_id, generation) IN (\n                    SELECT p.id, p.generation FROM turns_turn AS p\n                    WHERE p.id = ANY (ARRAY(SELECT turn_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_toolstep_child_fence', MESSAGE = 'turns_toolstep_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='753ca94585cf9f37e147b8eccdf4b99b38c9738e', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_4cba3', referencing='REFERENCING NEW TABLE AS fresh ', table='turns_toolstep', when='AFTER')),
        ),
    ]
