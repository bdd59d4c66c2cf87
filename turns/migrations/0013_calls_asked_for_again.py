"""A response keeps which calls of earlier ones it asked for again."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('turns', '0012_turns_are_deleted_read_committed'),
    ]

    operations = [
        migrations.AddField(
            model_name='providerstep',
            name='repeats',
            field=django.contrib.postgres.fields.ArrayField(base_field=models.SmallIntegerField(), db_default=[], size=None),
        ),
        migrations.AddConstraint(
            model_name='providerstep',
            constraint=models.CheckConstraint(condition=models.Q(('repeats__len__lte', 32)), name='turns_providerstep_repeats_bounded'),
        ),
    ]
