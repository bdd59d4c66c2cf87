import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """A job refers to its conversation and its computer together with its person, and to none of
    the three once more by itself."""

    dependencies = [
        ('work', '0008_steps_of_their_jobs'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AlterField(
            model_name='workjob',
            name='computer',
            field=models.ForeignKey(blank=True, db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.RESTRICT, related_name='+', to='work.computer'),
        ),
        migrations.AlterField(
            model_name='workjob',
            name='conversation',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='turns.conversation'),
        ),
        migrations.AlterField(
            model_name='workjob',
            name='person',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
    ]
