from django.db import migrations


class Migration(migrations.Migration):
    """A job, its conversation and its computer belong to one person.

    Deferred: within a transaction rows may come and go in any order.
    """

    dependencies = [
        ('work', '0002_request_is_immutable'),
        ('turns', '0004_conversation_of_owner'),
    ]

    operations = [
        migrations.RunSQL(
            sql="""
                ALTER TABLE work_workjob ADD CONSTRAINT work_workjob_conversation_of_person
                    FOREIGN KEY (conversation_id, person_id)
                    REFERENCES turns_conversation (id, owner_id)
                    DEFERRABLE INITIALLY DEFERRED
            """,
            reverse_sql="ALTER TABLE work_workjob DROP CONSTRAINT work_workjob_conversation_of_person",
        ),
        migrations.RunSQL(
            sql="""
                ALTER TABLE work_workjob ADD CONSTRAINT work_workjob_computer_of_person
                    FOREIGN KEY (computer_id, person_id)
                    REFERENCES work_computer (id, person_id)
                    DEFERRABLE INITIALLY DEFERRED
            """,
            reverse_sql="ALTER TABLE work_workjob DROP CONSTRAINT work_workjob_computer_of_person",
        ),
    ]
