import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """What a job asked and did is removed with the job alone: an adopter would do it again."""

    dependencies = [
        ('work', '0018_cancels_win'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql=(
                "DROP FUNCTION pgtrigger_goes_with_its_parent_3a973(); "
                "DROP FUNCTION pgtrigger_goes_with_its_parent_34774();"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workproviderstep',
            trigger=pgtrigger.compiler.Trigger(name='goes_with_its_parent', sql=pgtrigger.compiler.UpsertTriggerSql(constraint='CONSTRAINT', func="\n            IF EXISTS (SELECT FROM work_workjob WHERE id = OLD.job_id)\n                THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workproviderstep_goes_with_its_parent', MESSAGE = 'work_workproviderstep_goes_with_its_parent'; END IF;\n            RETURN NULL;\n        ", hash='d33480b67270d13b300253bf0f86796c30fc5b5d', operation='DELETE', pgid='pgtrigger_goes_with_its_parent_3a973', table='work_workproviderstep', timing='DEFERRABLE INITIALLY DEFERRED', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workstep',
            trigger=pgtrigger.compiler.Trigger(name='goes_with_its_parent', sql=pgtrigger.compiler.UpsertTriggerSql(constraint='CONSTRAINT', func="\n            IF EXISTS (SELECT FROM work_workjob WHERE id = OLD.job_id)\n                THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workstep_goes_with_its_parent', MESSAGE = 'work_workstep_goes_with_its_parent'; END IF;\n            RETURN NULL;\n        ", hash='dde6c6abadb1418eb4649732576d46f90c907750', operation='DELETE', pgid='pgtrigger_goes_with_its_parent_34774', table='work_workstep', timing='DEFERRABLE INITIALLY DEFERRED', when='AFTER')),
        ),
    ]
