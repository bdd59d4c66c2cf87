import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """No row becomes another."""

    dependencies = [
        ('semantic', '0007_leases_of_a_clock_that_was_ahead'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='manifest',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='semanticjob',
            name='identity_is_fixed',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='manifest',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.provider IS DISTINCT FROM NEW.provider OR OLD.model IS DISTINCT FROM NEW.model OR OLD.version IS DISTINCT FROM NEW.version OR OLD.dimensions IS DISTINCT FROM NEW.dimensions OR OLD.query_prefix IS DISTINCT FROM NEW.query_prefix OR OLD.passage_prefix IS DISTINCT FROM NEW.passage_prefix OR OLD.digest IS DISTINCT FROM NEW.digest OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'semantic_manifest_identity_is_fixed', MESSAGE = 'semantic_manifest_identity_is_fixed';", hash='1e79e154bbdb4c7e0e509f63cf56c163fbc988fd', operation='UPDATE OF "id", "generation", "provider", "model", "version", "dimensions", "query_prefix", "passage_prefix", "digest", "created_at"', pgid='pgtrigger_identity_is_fixed_5fd6d', table='semantic_manifest', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='semanticjob',
            trigger=pgtrigger.compiler.Trigger(name='identity_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.id IS DISTINCT FROM NEW.id OR OLD.manifest_id IS DISTINCT FROM NEW.manifest_id OR OLD.message_id IS DISTINCT FROM NEW.message_id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.person_id IS DISTINCT FROM NEW.person_id OR OLD.digest IS DISTINCT FROM NEW.digest OR OLD.round IS DISTINCT FROM NEW.round OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'semantic_semanticjob_identity_is_fixed', MESSAGE = 'semantic_semanticjob_identity_is_fixed';", hash='5dc402f01b74b995c364e5b204cac8ef4fecc8ea', operation='UPDATE OF "id", "manifest_id", "message_id", "conversation_id", "person_id", "digest", "round", "created_at"', pgid='pgtrigger_identity_is_fixed_07144', table='semantic_semanticjob', when='AFTER')),
        ),
    ]
