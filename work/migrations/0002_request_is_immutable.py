import pgtrigger.compiler
import pgtrigger.migrations
import recovery.operations
from django.db import migrations


class Migration(migrations.Migration):
    """The delegation request never changes; a checkpoint is its owner's alone."""

    dependencies = [
        ('work', '0001_jobs'),
    ]

    operations = [
        recovery.operations.DropUnusedTriggerFunctions(),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='admission_is_immutable', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.person_id IS DISTINCT FROM NEW.person_id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.goal IS DISTINCT FROM NEW.goal OR OLD.context IS DISTINCT FROM NEW.context OR OLD.prompt IS DISTINCT FROM NEW.prompt OR OLD.computer_id IS DISTINCT FROM NEW.computer_id OR OLD.agent IS DISTINCT FROM NEW.agent OR OLD.cwd IS DISTINCT FROM NEW.cwd OR OLD.host_id IS DISTINCT FROM NEW.host_id OR OLD.model IS DISTINCT FROM NEW.model OR OLD.wall_clock_seconds IS DISTINCT FROM NEW.wall_clock_seconds OR OLD.authority IS DISTINCT FROM NEW.authority OR OLD.budget IS DISTINCT FROM NEW.budget OR OLD.before_message_id IS DISTINCT FROM NEW.before_message_id OR OLD.client_key IS DISTINCT FROM NEW.client_key OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_admission_is_immutable', MESSAGE = 'work_workjob_admission_is_immutable';", hash='7bc0aba03acc3c6019b8df97ad59d1b7cfdff78f', operation='UPDATE', pgid='pgtrigger_admission_is_immutable_2e1d1', table='work_workjob', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='checkpoint_is_the_owners', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NOT (OLD.state = 'running' AND NEW.state = 'running' AND NEW.owner = OLD.owner AND NEW.generation = OLD.generation) AND (OLD.acp_session_id IS DISTINCT FROM NEW.acp_session_id OR OLD.acp_cursor IS DISTINCT FROM NEW.acp_cursor OR OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch))", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_checkpoint_is_the_owners', MESSAGE = 'work_workjob_checkpoint_is_the_owners';", hash='ca0e2c5c7f7dd546551800f0f6d4076c9e75f1c2', operation='UPDATE', pgid='pgtrigger_checkpoint_is_the_owners_78f5f', table='work_workjob', when='AFTER')),
        ),
    ]
