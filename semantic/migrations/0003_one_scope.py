from django.db import migrations

TABLES = ["semantic_semanticjob", "semantic_embedding", "semantic_messagewords"]


class Migration(migrations.Migration):
    """A derivative is of a message in its conversation, as long as there is one.

    Deferred: within a transaction rows may come and go in any order.
    """

    dependencies = [
        ('semantic', '0002_derivatives'),
        ('turns', '0006_message_in_conversation'),
    ]

    operations = [
        migrations.RunSQL(
            sql=f"""
                ALTER TABLE {table} ADD CONSTRAINT {table}_message_in_conversation
                    FOREIGN KEY (conversation_id, message_id)
                    REFERENCES turns_message (conversation_id, id)
                    DEFERRABLE INITIALLY DEFERRED
            """,
            reverse_sql=f"ALTER TABLE {table} DROP CONSTRAINT {table}_message_in_conversation",
        )
        for table in TABLES
    ]
