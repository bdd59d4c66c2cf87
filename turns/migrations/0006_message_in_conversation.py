from django.db import migrations, models


class Migration(migrations.Migration):
    """One index for the order of a conversation's messages and for what refers to both ids."""

    dependencies = [
        ('turns', '0005_rules_by_column'),
    ]

    operations = [
        migrations.AddConstraint(
            model_name='message',
            constraint=models.UniqueConstraint(fields=('conversation', 'id'), name='turns_message_in_conversation'),
        ),
        migrations.RemoveIndex(
            model_name='message',
            name='turns_message_in_order',
        ),
    ]
