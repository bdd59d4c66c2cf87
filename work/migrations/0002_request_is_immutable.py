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
            trigger=pgtrigger.compiler.Trigger(name='admission_is_immutable', sql=pgtrigger.compiler.UpsertTriggerSql(condition='WHEN (OLD.person_id IS DISTINCT FROM NEW.person_id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.goal IS DISTINCT FROM NEW.goal OR OLD.context IS DISTINCT FROM NEW.context OR OLD.prompt IS DISTINCT FROM NEW.prompt OR OLD.computer_id IS DISTINCT FROM NEW.computer_id OR OLD.agent IS DISTINCT FROM NEW.agent OR OLD.cwd IS DISTINCT FROM NEW.cwd OR OLD.host_id IS DISTINCT FROM NEW.host_id OR OLD.model IS DISTINCT FROM NEW.model OR OLD.wall_clock_seconds IS DISTINCT FROM NEW.wall_clock_seconds OR OLD.authority IS DISTINCT FROM NEW.authority OR OLD.budget IS DISTINCT FROM NEW.budget OR OLD.before_message_id IS DISTINCT FROM NEW.before_message_id OR OLD.client_key IS DISTINCT FROM NEW.client_key OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.created_at IS DISTINCT FROM NEW.created_at)', func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_admission_is_immutable', MESSAGE = 'work_workjob_admission_is_immutable';", hash='3e6492dfa8e7867e22a7bef7627e7ab72719b3b5', operation='UPDATE OF "person_id", "conversation_id", "kind", "goal", "context", "prompt", "computer_id", "agent", "cwd", "host_id", "model", "wall_clock_seconds", "authority", "budget", "before_message_id", "client_key", "request_digest", "created_at"', pgid='pgtrigger_admission_is_immutable_2e1d1', table='work_workjob', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='checkpoint_is_the_owners', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NOT (OLD.state = 'running' AND NEW.state = 'running' AND NEW.owner = OLD.owner AND NEW.generation = OLD.generation) AND (OLD.acp_session_id IS DISTINCT FROM NEW.acp_session_id OR OLD.acp_cursor IS DISTINCT FROM NEW.acp_cursor OR OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch))", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_checkpoint_is_the_owners', MESSAGE = 'work_workjob_checkpoint_is_the_owners';", hash='1905bf5c5ecbbe907bd8e13e7a80d58ff0deeb5e', operation='UPDATE OF "acp_session_id", "acp_cursor", "base_commit", "branch"', pgid='pgtrigger_checkpoint_is_the_owners_78f5f', table='work_workjob', when='AFTER')),
        ),
    ]
