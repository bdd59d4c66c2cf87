import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """A lease that ends too far ahead was given by a clock that was, and is over."""

    dependencies = [
        ('semantic', '0006_jobs_and_receipts_are_kept'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='semanticjob',
            name='claim_is_fenced',
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='semanticjob',
            trigger=pgtrigger.compiler.Trigger(name='claim_is_fenced', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NOT (NEW.attempts = OLD.attempts + 1 AND NEW.state = 'running' AND NEW.claim_token IS NOT NULL AND NEW.claim_token IS DISTINCT FROM OLD.claim_token AND NEW.lease_expires_at > statement_timestamp() AND NEW.lease_expires_at <= statement_timestamp() + interval '30 seconds' AND (OLD.state = 'queued' OR (OLD.lease_expires_at <= statement_timestamp() OR OLD.lease_expires_at > statement_timestamp() + interval '60 seconds'))) AND (NEW.attempts <> OLD.attempts OR NEW.claim_token IS DISTINCT FROM OLD.claim_token))", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'semantic_semanticjob_claim_is_fenced', MESSAGE = 'semantic_semanticjob_claim_is_fenced';", hash='3fa3ebfa5297c658977ff543d361615d0261bdc6', operation='UPDATE OF "attempts", "claim_token"', pgid='pgtrigger_claim_is_fenced_8a43e', table='semantic_semanticjob', when='AFTER')),
        ),
    ]
