"""What a person had the assistant remember."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from recovery.constraints import at_most
from recovery.triggers import refuse_change
from turns import bounds


class Note(models.Model):
    """A sentence its owner wants kept. It never changes; forgetting it removes the row.

    `invocation_key` is that of the tool call which stored it, so that one call stores one note
    however often it is delivered.
    """

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    text = models.TextField()
    invocation_key = models.UUIDField(unique=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=at_most("text", bounds.NOTE_MAX_BYTES),
                name="turns_note_text_bounded",
            ),
        ]
        indexes = [
            # a person's notes, newest first
            models.Index(fields=["owner", "-id"], name="turns_note_of_owner"),
        ]
        triggers = [
            refuse_change(
                "turns_note", "is_final", ["owner_id", "text", "invocation_key", "created_at"]
            ),
        ]

    def __str__(self) -> str:
        return f"note {self.pk}"
