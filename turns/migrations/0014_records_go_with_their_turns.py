import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """What a turn asked and did is removed with the turn alone."""

    dependencies = [
        ('turns', '0013_calls_asked_for_again'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql=(
                "DROP FUNCTION pgtrigger_goes_with_its_parent_85341(); "
                "DROP FUNCTION pgtrigger_goes_with_its_parent_aac49(); "
                "DROP FUNCTION pgtrigger_goes_with_its_parent_38bca();"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='providerstep',
            trigger=pgtrigger.compiler.Trigger(name='goes_with_its_parent', sql=pgtrigger.compiler.UpsertTriggerSql(constraint='CONSTRAINT', func="\n            IF EXISTS (SELECT FROM turns_turn WHERE id = OLD.turn_id)\n                THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_providerstep_goes_with_its_parent', MESSAGE = 'turns_providerstep_goes_with_its_parent'; END IF;\n            RETURN NULL;\n        ", hash='096e3dfdb9f0cbedda30d1f61bb32260adf8d453', operation='DELETE', pgid='pgtrigger_goes_with_its_parent_85341', table='turns_providerstep', timing='DEFERRABLE INITIALLY DEFERRED', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='receipt',
            trigger=pgtrigger.compiler.Trigger(name='goes_with_its_parent', sql=pgtrigger.compiler.UpsertTriggerSql(constraint='CONSTRAINT', func="\n            IF EXISTS (SELECT FROM turns_turn WHERE id = OLD.turn_id)\n                THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_receipt_goes_with_its_parent', MESSAGE = 'turns_receipt_goes_with_its_parent'; END IF;\n            RETURN NULL;\n        ", hash='d24b4eee0ae7a83703902bfef42d12206e382934', operation='DELETE', pgid='pgtrigger_goes_with_its_parent_aac49', table='turns_receipt', timing='DEFERRABLE INITIALLY DEFERRED', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='toolstep',
            trigger=pgtrigger.compiler.Trigger(name='goes_with_its_parent', sql=pgtrigger.compiler.UpsertTriggerSql(constraint='CONSTRAINT', func="\n            IF EXISTS (SELECT FROM turns_turn WHERE id = OLD.turn_id)\n                THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_toolstep_goes_with_its_parent', MESSAGE = 'turns_toolstep_goes_with_its_parent'; END IF;\n            RETURN NULL;\n        ", hash='3116469c2207f77530dfb7daf1157d42475d5cc4', operation='DELETE', pgid='pgtrigger_goes_with_its_parent_38bca', table='turns_toolstep', timing='DEFERRABLE INITIALLY DEFERRED', when='AFTER')),
        ),
    ]
