from django.db import migrations
from pgvector.django import VectorExtension


class Migration(migrations.Migration):
    """The type of vectors. Where the role may not create extensions, an administrator does."""

    dependencies = []

    operations = [VectorExtension()]
