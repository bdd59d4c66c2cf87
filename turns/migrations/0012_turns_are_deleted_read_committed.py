import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """No turn is removed in a transaction that would not see the chunks that came since it
    began."""

    dependencies = [
        ('turns', '0011_a_turn_is_claimed_once'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql="DROP FUNCTION pgtrigger_deleted_read_committed_8da86()",
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='turn',
            trigger=pgtrigger.compiler.Trigger(name='deleted_read_committed', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (current_setting('transaction_isolation') IN ('repeatable read', 'serializable'))", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_turn_deleted_read_committed', MESSAGE = 'turns_turn_deleted_read_committed';", hash='441702987f71c737028a24d0d49c9a0828f28b92', operation='DELETE', pgid='pgtrigger_deleted_read_committed_8da86', table='turns_turn', when='AFTER')),
        ),
    ]
