from django.db import migrations

TABLES = ["semantic_semanticjob", "semantic_embedding", "semantic_messagewords"]


def key(table, name, columns, target):
    return migrations.RunSQL(
        sql=f"""
            ALTER TABLE {table} ADD CONSTRAINT {table}_{name} FOREIGN KEY {columns}
                REFERENCES {target} DEFERRABLE INITIALLY DEFERRED
        """,
        reverse_sql=f"ALTER TABLE {table} DROP CONSTRAINT {table}_{name}",
    )


class Migration(migrations.Migration):
    """A derivative, its message, its conversation and its person belong together.

    Deferred: within a transaction rows may come and go in any order.
    """

    dependencies = [
        ('semantic', '0002_derivatives'),
        ('turns', '0006_message_in_conversation'),
    ]

    operations = [
        operation
        for table in TABLES
        for operation in (
            key(
                table,
                "message_in_conversation",
                "(conversation_id, message_id)",
                "turns_message (conversation_id, id)",
            ),
            key(
                table,
                "conversation_of_person",
                "(conversation_id, person_id)",
                "turns_conversation (id, owner_id)",
            ),
        )
    ]
