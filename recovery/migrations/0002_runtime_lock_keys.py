from django.db import migrations


class Migration(migrations.Migration):
    """Keys of session advisory locks, drawn fresh for each connection.

    They start far from the small numbers other software picks ("HOLD" in the high 32 bits).
    """

    dependencies = [("recovery", "0001_kernel")]

    operations = [
        migrations.RunSQL(
            sql=f"CREATE SEQUENCE recovery_runtime_lock_key AS bigint START {0x484F4C44 << 32}",
            reverse_sql="DROP SEQUENCE recovery_runtime_lock_key",
        ),
    ]
