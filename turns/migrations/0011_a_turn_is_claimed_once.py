import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    """Who claimed a turn, when, and until when it may run are said by its one claim alone."""

    dependencies = [
        ('turns', '0010_access_stays_its_persons'),
    ]

    operations = [
        # taken back, a trigger leaves its function
        migrations.RunSQL(
            sql=migrations.RunSQL.noop,
            reverse_sql="""
                DROP FUNCTION
                    pgtrigger_claim_is_counted_0c787(),
                    pgtrigger_claim_is_fixed_84863()
            """,
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='turn',
            trigger=pgtrigger.compiler.Trigger(name='claim_is_counted', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NEW.generation - OLD.generation <> (OLD.state = 'queued' AND NEW.state = 'running')::int OR NEW.attempts - OLD.attempts <> (OLD.state = 'queued' AND NEW.state = 'running')::int)", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_turn_claim_is_counted', MESSAGE = 'turns_turn_claim_is_counted';", hash='712de62d26989e5b411d5fae4bc828e923324aff', operation='UPDATE OF "state", "generation", "attempts"', pgid='pgtrigger_claim_is_counted_0c787', table='turns_turn', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='turn',
            trigger=pgtrigger.compiler.Trigger(name='claim_is_fixed', sql=pgtrigger.compiler.UpsertTriggerSql(condition="WHEN (NOT (OLD.state = 'queued' AND NEW.state = 'running') AND (OLD.owner IS DISTINCT FROM NEW.owner OR OLD.claim_token IS DISTINCT FROM NEW.claim_token OR OLD.claimed_at IS DISTINCT FROM NEW.claimed_at OR OLD.deadline_at IS DISTINCT FROM NEW.deadline_at))", func="RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = 'turns_turn_claim_is_fixed', MESSAGE = 'turns_turn_claim_is_fixed';", hash='46112fe5c5e1799915dfa1d3eb7cd03880aaac5b', operation='UPDATE OF "owner", "claim_token", "claimed_at", "deadline_at"', pgid='pgtrigger_claim_is_fixed_84863', table='turns_turn', when='AFTER')),
        ),
    ]
