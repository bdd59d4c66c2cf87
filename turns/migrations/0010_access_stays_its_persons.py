import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """A token, and an address that may be posted to, stay with the person who has them."""

    dependencies = [
        ('turns', '0009_ids_are_fixed'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql="""
                DROP FUNCTION
                    pgtrigger_identity_is_fixed_1f2dc(),
                    pgtrigger_identity_is_fixed_9de03()
            """,
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='apitoken',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.user_id IS DISTINCT FROM NEW.user_id OR OLD.digest IS DISTINCT FROM NEW.digest)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_apitoken_identity_is_fixed', MESSAGE = 'turns_apitoken_identity_is_fixed';", hash='a88be3593dbff0a6d5628880af7e4d1509f3b650', operation='UPDATE OF "id", "user_id", "digest"', pgid='pgtrigger_identity_is_fixed_9de03', table='turns_apitoken', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='webhookaddress',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.owner_id IS DISTINCT FROM NEW.owner_id)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_webhookaddress_identity_is_fixed', MESSAGE = 'turns_webhookaddress_identity_is_fixed';", hash='6ed9aafb595f5c53c59a0e95995ebf1975fcf579', operation='UPDATE OF "id", "owner_id"', pgid='pgtrigger_identity_is_fixed_1f2dc', table='turns_webhookaddress', when='AFTER')),
        ),
    ]
