import pgtrigger.compiler
import pgtrigger.migrations
import recovery.triggers
from django.db import migrations


class Migration(migrations.Migration):
    """A job begins in the queue, which gives it a new deadline with a release alone, and keeps
    the worktree that it was given first."""

    dependencies = [
        ('work', '0011_rules_looked_at_where_broken'),
    ]

    operations = [
        # taken back, a trigger leaves its function; what an earlier migration left stays
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql="""
                DROP FUNCTION
                    pgtrigger_begins_queued_65c51(),
                    pgtrigger_queue_deadline_is_fixed_6d8e4()
            """,
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='workjob',
            name='keeps_what_is_fixed',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='keeps_what_is_fixed', sql=recovery.triggers.ConstantTriggerSql(declare='DECLARE broken text;', func="\n                IF (OLD.person_id IS DISTINCT FROM NEW.person_id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.goal IS DISTINCT FROM NEW.goal OR OLD.context IS DISTINCT FROM NEW.context OR OLD.prompt IS DISTINCT FROM NEW.prompt OR OLD.computer_id IS DISTINCT FROM NEW.computer_id OR OLD.agent IS DISTINCT FROM NEW.agent OR OLD.cwd IS DISTINCT FROM NEW.cwd OR OLD.host_id IS DISTINCT FROM NEW.host_id OR OLD.model IS DISTINCT FROM NEW.model OR OLD.wall_clock_seconds IS DISTINCT FROM NEW.wall_clock_seconds OR OLD.authority IS DISTINCT FROM NEW.authority OR OLD.budget IS DISTINCT FROM NEW.budget OR OLD.before_message_id IS DISTINCT FROM NEW.before_message_id OR OLD.client_key IS DISTINCT FROM NEW.client_key OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.created_at IS DISTINCT FROM NEW.created_at) OR (octet_length(NEW.acp_session_id) > 512) OR (NOT (OLD.state = 'running' AND NEW.state = 'running' AND NEW.owner = OLD.owner AND NEW.generation = OLD.generation) AND (OLD.acp_session_id IS DISTINCT FROM NEW.acp_session_id OR OLD.acp_cursor IS DISTINCT FROM NEW.acp_cursor OR OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch)) OR ((OLD.base_commit <> '' OR OLD.branch <> '') AND (OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch)) OR (OLD.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at) THEN\n                    broken := CASE WHEN OLD.person_id IS DISTINCT FROM NEW.person_id OR OLD.conversation_id IS DISTINCT FROM NEW.conversation_id OR OLD.kind IS DISTINCT FROM NEW.kind OR OLD.goal IS DISTINCT FROM NEW.goal OR OLD.context IS DISTINCT FROM NEW.context OR OLD.prompt IS DISTINCT FROM NEW.prompt OR OLD.computer_id IS DISTINCT FROM NEW.computer_id OR OLD.agent IS DISTINCT FROM NEW.agent OR OLD.cwd IS DISTINCT FROM NEW.cwd OR OLD.host_id IS DISTINCT FROM NEW.host_id OR OLD.model IS DISTINCT FROM NEW.model OR OLD.wall_clock_seconds IS DISTINCT FROM NEW.wall_clock_seconds OR OLD.authority IS DISTINCT FROM NEW.authority OR OLD.budget IS DISTINCT FROM NEW.budget OR OLD.before_message_id IS DISTINCT FROM NEW.before_message_id OR OLD.client_key IS DISTINCT FROM NEW.client_key OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.created_at IS DISTINCT FROM NEW.created_at THEN 'work_workjob_admission_is_immutable' WHEN octet_length(NEW.acp_session_id) > 512 THEN 'work_workjob_session_bounded' WHEN NOT (OLD.state = 'running' AND NEW.state = 'running' AND NEW.owner = OLD.owner AND NEW.generation = OLD.generation) AND (OLD.acp_session_id IS DISTINCT FROM NEW.acp_session_id OR OLD.acp_cursor IS DISTINCT FROM NEW.acp_cursor OR OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch) THEN 'work_workjob_checkpoint_is_the_owners' WHEN (OLD.base_commit <> '' OR OLD.branch <> '') AND (OLD.base_commit IS DISTINCT FROM NEW.base_commit OR OLD.branch IS DISTINCT FROM NEW.branch) THEN 'work_workjob_workspace_is_fixed' WHEN OLD.cancel_requested_at IS NOT NULL AND OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at THEN 'work_workjob_cancel_is_final' END;\n                    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,\n                        MESSAGE = broken;\n                END IF;\n                RETURN NULL;\n            ", hash='7ffea37e82cfbec41232da23ca5a9047908ae69e', operation='UPDATE OF "person_id", "conversation_id", "kind", "goal", "context", "prompt", "computer_id", "agent", "cwd", "host_id", "model", "wall_clock_seconds", "authority", "budget", "before_message_id", "client_key", "request_digest", "created_at", "acp_session_id", "acp_cursor", "base_commit", "branch", "cancel_requested_at"', pgid='pgtrigger_keeps_what_is_fixed_31b6c', table='work_workjob', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='begins_queued', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NEW.state <> 'queued' OR NEW.generation <> 0 OR NEW.attempts <> 0 OR NEW.planned_releases <> 0 OR NEW.dispatch_count <> 0 OR NEW.claimed_at IS NOT NULL OR NEW.deadline_at IS NOT NULL)", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_begins_queued', MESSAGE = 'work_workjob_begins_queued';", hash='fa17aec9641a00f9c8b2aecbe83da7e11edcac00', operation='INSERT', pgid='pgtrigger_begins_queued_65c51', table='work_workjob', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='queue_deadline_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NOT (OLD.state = 'running' AND NEW.state = 'queued') AND OLD.queue_deadline_at IS DISTINCT FROM NEW.queue_deadline_at)", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'work_workjob_queue_deadline_is_fixed', MESSAGE = 'work_workjob_queue_deadline_is_fixed';", hash='e0074f51943d2ee00bb40e9c2f0f88e5b659b0e6', operation='UPDATE OF "queue_deadline_at"', pgid='pgtrigger_queue_deadline_is_fixed_6d8e4', table='work_workjob', when='AFTER')),
        ),
    ]
