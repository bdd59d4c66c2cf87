from django.db import migrations, models


class Migration(migrations.Migration):
    """Until its end a job moves without a write to any index: its page has room for each row's
    next version, also where all of them move in one statement."""

    dependencies = [
        ('work', '0004_rules_in_functions'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='workjob',
            index=models.Index(condition=models.Q(('finished_at__isnull', True)), fields=['created_at', 'id'], name='work_workjob_live'),
        ),
        migrations.RemoveIndex(
            model_name='workjob',
            name='work_workjob_running',
        ),
        migrations.RemoveIndex(
            model_name='workjob',
            name='work_workjob_queued',
        ),
        migrations.RunSQL(
            sql="ALTER TABLE work_workjob SET (fillfactor = 50)",
            reverse_sql="ALTER TABLE work_workjob RESET (fillfactor)",
        ),
        migrations.RunSQL(
            sql="ALTER TABLE work_workstep SET (fillfactor = 50)",
            reverse_sql="ALTER TABLE work_workstep RESET (fillfactor)",
        ),
    ]
