import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """A tool step is of a provider step of its own turn: one foreign key, where one to the turn
    and one to the provider step said less.

    Deferred: within a transaction rows may come and go in any order.
    """

    dependencies = [
        ('turns', '0007_children_judged_by_one_query'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='providerstep',
            constraint=models.UniqueConstraint(fields=('id', 'turn'), name='turns_providerstep_of_turn'),
        ),
        migrations.RunSQL(
            sql="""
                ALTER TABLE turns_toolstep ADD CONSTRAINT turns_toolstep_provider_step_of_turn
                    FOREIGN KEY (provider_step_id, turn_id)
                    REFERENCES turns_providerstep (id, turn_id)
                    DEFERRABLE INITIALLY DEFERRED
            """,
            reverse_sql="ALTER TABLE turns_toolstep DROP CONSTRAINT turns_toolstep_provider_step_of_turn",
        ),
        migrations.AlterField(
            model_name='toolstep',
            name='turn',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='tool_steps', to='turns.turn'),
        ),
        migrations.AlterField(
            model_name='toolstep',
            name='provider_step',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='tool_steps', to='turns.providerstep'),
        ),
    ]
