import pgtrigger.compiler
import pgtrigger.migrations
import recovery.triggers
from django.db import migrations


class Migration(migrations.Migration):
    """The fence of children looks at what is presented and at its parents in one query."""

    dependencies = [
        ('work', '0006_claims_are_counted'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='jobreport',
            name='child_fence',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='workproviderstep',
            name='child_fence',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='workstep',
            name='child_fence',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='jobreport',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=recovery.triggers.ConstantTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((job_id, generation) IN (\n                    SELECT p.id, p.generation FROM work_workjob AS p\n                    WHERE p.id = ANY (ARRAY(SELECT job_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('queued', 'running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_jobreport_child_fence', MESSAGE = 'work_jobreport_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='7efefe05f686e019bd5a83d4501b4a630370de93', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_04fbe', referencing='REFERENCING NEW TABLE AS fresh ', table='work_jobreport', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workproviderstep',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=recovery.triggers.ConstantTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((job_id, generation) IN (\n                    SELECT p.id, p.generation FROM work_workjob AS p\n                    WHERE p.id = ANY (ARRAY(SELECT job_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workproviderstep_child_fence', MESSAGE = 'work_workproviderstep_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='3e5478b4fc1e8203260d5fdabbd47ba1aa59ccab', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_e50b8', referencing='REFERENCING NEW TABLE AS fresh ', table='work_workproviderstep', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workstep',
            trigger=pgtrigger.compiler.Trigger(name='child_fence', sql=recovery.triggers.ConstantTriggerSql(func="\n            IF EXISTS (\n                SELECT FROM fresh WHERE ((job_id, generation) IN (\n                    SELECT p.id, p.generation FROM work_workjob AS p\n                    WHERE p.id = ANY (ARRAY(SELECT job_id FROM fresh))\n                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))\n                        AND p.state IN ('running')\n                    ORDER BY p.id FOR SHARE\n                )) IS NOT TRUE\n            ) THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workstep_child_fence', MESSAGE = 'work_workstep_child_fence'; END IF;\n            RETURN NULL;\n        ", hash='493f431d68b040db9e8484a0a3b37aaba335f8c1', level='STATEMENT', operation='INSERT', pgid='pgtrigger_child_fence_d8146', referencing='REFERENCING NEW TABLE AS fresh ', table='work_workstep', when='AFTER')),
        ),
    ]
