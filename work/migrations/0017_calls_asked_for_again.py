"""A response keeps which calls of earlier ones it asked for again."""

import django.contrib.postgres.fields
import pgtrigger.compiler
import pgtrigger.migrations
import recovery.triggers
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('work', '0016_jobs_end_read_committed'),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name='workproviderstep',
            name='begins_by_rules',
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name='workproviderstep',
            name='keeps_what_is_fixed',
        ),
        migrations.AddField(
            model_name='workproviderstep',
            name='repeats',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.SmallIntegerField(), db_default=[], size=None),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workproviderstep',
            trigger=pgtrigger.compiler.Trigger(name='begins_by_rules', sql=recovery.triggers.ConstantTriggerSql(declare='DECLARE broken text;', func="\n        IF (NOT NEW.state IN ('cancelled', 'completed', 'failed', 'interrupted', 'started')) OR ((NEW.state IN ('cancelled', 'completed', 'failed', 'interrupted')) <> (NEW.finished_at IS NOT NULL)) OR ((NEW.state IN ('completed') AND NEW.error_code <> '') OR (NEW.state IN ('failed', 'interrupted') AND NEW.error_code = '')) OR (octet_length(NEW.response_id) > 512) OR (octet_length(NEW.usage::text) > 16384) OR (octet_length(NEW.text) > 65536) OR (NEW.anomaly_count < 0) OR (cardinality(NEW.repeats) > 128) OR (NEW.sequence NOT BETWEEN 1 AND 32) OR (NEW.request_bytes < 0) THEN\n            broken := CASE WHEN NOT NEW.state IN ('cancelled', 'completed', 'failed', 'interrupted', 'started') THEN 'work_workproviderstep_state_known' WHEN (NEW.state IN ('cancelled', 'completed', 'failed', 'interrupted')) <> (NEW.finished_at IS NOT NULL) THEN 'work_workproviderstep_ended_with_its_time' WHEN (NEW.state IN ('completed') AND NEW.error_code <> '') OR (NEW.state IN ('failed', 'interrupted') AND NEW.error_code = '') THEN 'work_workproviderstep_error_code_is_honest' WHEN octet_length(NEW.response_id) > 512 THEN 'work_workproviderstep_response_id_bounded' WHEN octet_length(NEW.usage::text) > 16384 THEN 'work_workproviderstep_usage_bounded' WHEN octet_length(NEW.text) > 65536 THEN 'work_workproviderstep_text_bounded' WHEN NEW.anomaly_count < 0 THEN 'work_workproviderstep_anomalies_counted' WHEN cardinality(NEW.repeats) > 128 THEN 'work_workproviderstep_repeats_bounded' WHEN NEW.sequence NOT BETWEEN 1 AND 32 THEN 'work_workproviderstep_count_bounded' WHEN NEW.request_bytes < 0 THEN 'work_workproviderstep_bytes_counted' END;\n            RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,\n                MESSAGE = broken;\n        END IF; RETURN NULL;", hash='f1a3b30cef9347d54203109e55e4de60769ed90e', operation='INSERT', pgid='pgtrigger_begins_by_rules_5a529', table='work_workproviderstep', when='AFTER')),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='workproviderstep',
            trigger=pgtrigger.compiler.Trigger(name='keeps_what_is_fixed', sql=recovery.triggers.ConstantTriggerSql(declare='DECLARE broken text;', func="\n        IF (OLD.id IS DISTINCT FROM NEW.id OR OLD.job_id IS DISTINCT FROM NEW.job_id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.sequence IS DISTINCT FROM NEW.sequence OR OLD.model IS DISTINCT FROM NEW.model OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.request_bytes IS DISTINCT FROM NEW.request_bytes OR OLD.offers_tools IS DISTINCT FROM NEW.offers_tools OR OLD.started_at IS DISTINCT FROM NEW.started_at) OR (cardinality(NEW.repeats) > 128) THEN\n            broken := CASE WHEN OLD.id IS DISTINCT FROM NEW.id OR OLD.job_id IS DISTINCT FROM NEW.job_id OR OLD.generation IS DISTINCT FROM NEW.generation OR OLD.sequence IS DISTINCT FROM NEW.sequence OR OLD.model IS DISTINCT FROM NEW.model OR OLD.request_digest IS DISTINCT FROM NEW.request_digest OR OLD.request_bytes IS DISTINCT FROM NEW.request_bytes OR OLD.offers_tools IS DISTINCT FROM NEW.offers_tools OR OLD.started_at IS DISTINCT FROM NEW.started_at THEN 'work_workproviderstep_identity_is_fixed' WHEN cardinality(NEW.repeats) > 128 THEN 'work_workproviderstep_repeats_bounded' END;\n            RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,\n                MESSAGE = broken;\n        END IF; RETURN NULL;", hash='c1c774509420ebc61a68c1b3319f33c118246347', operation='UPDATE OF "id", "job_id", "generation", "sequence", "model", "request_digest", "request_bytes", "offers_tools", "started_at", "repeats"', pgid='pgtrigger_keeps_what_is_fixed_40c45', table='work_workproviderstep', when='AFTER')),
        ),
    ]
