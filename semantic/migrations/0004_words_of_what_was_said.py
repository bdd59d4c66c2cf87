from django.db import migrations


class Migration(migrations.Migration):
    """What was said before there was a search is found by its words too."""

    dependencies = [
        ('semantic', '0003_one_scope'),
    ]

    operations = [
        migrations.RunSQL(
            sql="""
                INSERT INTO semantic_messagewords (message_id, conversation_id, person_id, words)
                SELECT m.id, m.conversation_id, c.owner_id, strip(to_tsvector('simple', m.text))
                    || array_to_tsvector(ARRAY['person ' || c.owner_id])
                FROM turns_message m JOIN turns_conversation c ON c.id = m.conversation_id
                WHERE m.state = 'complete' AND m.text ~ '\\S'
                ON CONFLICT (message_id) DO NOTHING
            """,
            reverse_sql=migrations.RunSQL.noop,
        ),
    ]
