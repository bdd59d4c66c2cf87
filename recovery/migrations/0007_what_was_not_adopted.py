from django.db import migrations, models


class Migration(migrations.Migration):
    """A row that was given back and claimed by nobody is recovered for another cause than one
    that was never started."""

    dependencies = [
        ('recovery', '0006_nothing_moved'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='recoveryevent',
            name='recovery_recoveryevent_cause_known',
        ),
        migrations.AlterField(
            model_name='recoveryevent',
            name='cause',
            field=models.CharField(choices=[('runtime_lost', 'runtime lost'), ('lease_expired', 'lease expired'), ('runtime_stopped', 'runtime stopped'), ('deadline_passed', 'deadline passed'), ('never_started', 'never started'), ('not_adopted', 'not adopted')], max_length=16),
        ),
        migrations.AddConstraint(
            model_name='recoveryevent',
            constraint=models.CheckConstraint(condition=models.Q(('cause__in', ['deadline_passed', 'lease_expired', 'never_started', 'not_adopted', 'runtime_lost', 'runtime_stopped'])), name='recovery_recoveryevent_cause_known'),
        ),
        migrations.RunSQL(
            migrations.RunSQL.noop,
            # Events are append-only, but for this.
            """
            ALTER TABLE recovery_recoveryevent DISABLE TRIGGER USER;
            UPDATE recovery_recoveryevent SET cause = 'never_started' WHERE cause = 'not_adopted';
            ALTER TABLE recovery_recoveryevent ENABLE TRIGGER USER;
            """,
        ),
    ]
