import pgtrigger.compiler
import pgtrigger.migrations
import recovery.triggers
from django.db import migrations


class Migration(migrations.Migration):
    """A job changes hands by releases and claims alone, each is counted, and a claim keeps its
    token."""

    dependencies = [
        ('work', '0005_moves_stay_on_their_page'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='workjob',
            name='abides_by_rules',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workjob',
            trigger=pgtrigger.compiler.Trigger(name='abides_by_rules', sql=recovery.triggers.ConstantTriggerSql(declare='DECLARE broken text;', func="\n                broken := CASE WHEN NOT NEW.state IN ('budget_exhausted', 'cancelled', 'completed', 'failed', 'interrupted', 'queued', 'running') THEN 'work_workjob_state_known' WHEN (NEW.state IN ('budget_exhausted', 'cancelled', 'completed', 'failed', 'interrupted')) <> (NEW.finished_at IS NOT NULL) THEN 'work_workjob_ended_with_its_time' WHEN (NEW.state IN ('completed') AND NEW.error_code <> '') OR (NEW.state IN ('budget_exhausted', 'failed', 'interrupted') AND NEW.error_code = '') THEN 'work_workjob_error_code_is_honest' WHEN NEW.generation <> NEW.write_mark >> 32 THEN 'work_workjob_fence_presented' WHEN \n        NEW.state = 'running' AND (NEW.owner IS NULL OR NEW.claim_token IS NULL\n            OR NEW.deadline_at IS NULL OR NEW.claimed_at IS NULL OR NEW.generation < 1) THEN 'work_workjob_running_is_owned' WHEN \n        NEW.state = 'queued' AND (NEW.owner IS NOT NULL OR NEW.claim_token IS NOT NULL) THEN 'work_workjob_queued_is_free' WHEN octet_length(NEW.acp_session_id) > 512 THEN 'work_workjob_session_bounded' WHEN \n        NEW.planned_releases < 0 OR NEW.planned_releases > NEW.attempts\n            OR NEW.dispatch_count < 0 THEN 'work_workjob_releases_are_of_attempts' WHEN NEW.write_mark = OLD.write_mark THEN 'work_workjob_fence' WHEN NEW.generation < OLD.generation OR NEW.generation > OLD.generation + 1 OR (NEW.owner IS DISTINCT FROM OLD.owner AND NEW.owner IS NOT NULL AND NEW.generation <> OLD.generation + 1) THEN 'work_workjob_generation' WHEN OLD.state <> NEW.state AND NOT ((OLD.state = 'queued' AND NEW.state IN ('budget_exhausted', 'cancelled', 'failed', 'interrupted', 'running')) OR (OLD.state = 'running' AND NEW.state IN ('budget_exhausted', 'cancelled', 'completed', 'failed', 'interrupted', 'queued'))) THEN 'work_workjob_moves' WHEN OLD.state IN ('budget_exhausted', 'cancelled', 'completed', 'failed', 'interrupted') THEN 'work_workjob_end_is_final' WHEN OLD.owner IS NOT NULL AND NEW.owner IS NULL AND NOT NEW.state IN ('budget_exhausted', 'cancelled', 'completed', 'failed', 'interrupted') AND NEW.generation <> OLD.generation + 1 THEN 'work_workjob_release_is_fenced' WHEN OLD.deadline_at IS NOT NULL AND OLD.deadline_at IS DISTINCT FROM NEW.deadline_at THEN 'work_workjob_deadline_is_fixed' WHEN \n        NEW.attempts - OLD.attempts <> (OLD.state = 'queued' AND NEW.state = 'running')::int\n            OR OLD.state = 'running' AND NEW.state = 'running'\n                AND NEW.generation <> OLD.generation THEN 'work_workjob_claim_is_counted' WHEN \n        NEW.generation = OLD.generation AND NEW.claim_token IS DISTINCT FROM OLD.claim_token THEN 'work_workjob_claim_keeps_its_token' WHEN \n        NEW.planned_releases - OLD.planned_releases\n            NOT BETWEEN 0 AND (OLD.state = 'running' AND NEW.state = 'queued')::int THEN 'work_workjob_releases_are_counted' END;\n                IF broken IS NOT NULL THEN\n                    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,\n                        MESSAGE = broken;\n                END IF;\n                RETURN NULL;\n            ", hash='6535bae3a6281bde23dedc17b6a6bd893f7e2d7c', operation='INSERT OR UPDATE', pgid='pgtrigger_abides_by_rules_13cfd', table='work_workjob', when='AFTER')),
        ),
    ]
