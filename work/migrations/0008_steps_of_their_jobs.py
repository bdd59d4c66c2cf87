import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """A step is of a provider step of its own job: one foreign key, where one to the job and one
    to the provider step said less.

    Deferred: within a transaction rows may come and go in any order.
    """

    dependencies = [
        ('work', '0007_children_judged_by_one_query'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='workproviderstep',
            constraint=models.UniqueConstraint(fields=('id', 'job'), name='work_workproviderstep_of_job'),
        ),
        migrations.RunSQL(
            sql="""
                ALTER TABLE work_workstep ADD CONSTRAINT work_workstep_provider_step_of_job
                    FOREIGN KEY (provider_step_id, job_id)
                    REFERENCES work_workproviderstep (id, job_id)
                    DEFERRABLE INITIALLY DEFERRED
            """,
            reverse_sql="ALTER TABLE work_workstep DROP CONSTRAINT work_workstep_provider_step_of_job",
        ),
        migrations.AlterField(
            model_name='workstep',
            name='job',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='work.workjob'),
        ),
        migrations.AlterField(
            model_name='workstep',
            name='provider_step',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='steps', to='work.workproviderstep'),
        ),
    ]
