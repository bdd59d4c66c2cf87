from django.db import migrations


class Migration(migrations.Migration):
    """A statement that locked rows by writing to them can be taken back: `recovery.statements`."""

    dependencies = [
        ('recovery', '0005_rules_by_column'),
    ]

    operations = [
        migrations.RunSQL(
            sql="""
                CREATE FUNCTION recovery_moved(has_moved boolean) RETURNS boolean
                LANGUAGE plpgsql AS $$
                BEGIN
                    IF NOT has_moved THEN
                        RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'nothing moved';
                    END IF;
                    RETURN true;
                END $$
            """,
            reverse_sql="DROP FUNCTION recovery_moved(boolean)",
        ),
    ]
