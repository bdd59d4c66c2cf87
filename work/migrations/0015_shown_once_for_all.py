import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """A report stays with the message that shows it."""

    dependencies = [
        ('work', '0014_rules_as_trees'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql="""
                DROP FUNCTION
                    pgtrigger_identity_is_fixed_458e1()
            """,
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='jobreportmessage',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.report_id IS DISTINCT FROM NEW.report_id OR OLD.message_id IS DISTINCT FROM NEW.message_id)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_jobreportmessage_identity_is_fixed', MESSAGE = 'work_jobreportmessage_identity_is_fixed';", hash='289207787ef052b6b5d7ef5c1becdb1f8c91ca42', operation='UPDATE OF "id", "report_id", "message_id"', pgid='pgtrigger_identity_is_fixed_458e1', table='work_jobreportmessage', when='AFTER')),
        ),
    ]
