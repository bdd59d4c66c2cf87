"""The words of one message, for full-text search."""

from __future__ import annotations

import pgtrigger
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models

from recovery.triggers import refuse
from semantic.models.scope import OfMessage, is_of_its_message
from turns.models import Message


class MessageWords(OfMessage):
    """The words of a complete message, by the plain dictionary, kept by the database alone.

    Beside the words stands one entry that no text can contain, the person's own (see
    `semantic/models/messages.py`): the index meets it like a word, so a search walks the
    entries of its own person only, however much others have said.
    """

    message = models.OneToOneField(
        Message,
        on_delete=models.DO_NOTHING,
        related_name="+",
        primary_key=True,
        db_constraint=False,
    )
    words = SearchVectorField()

    class Meta:
        verbose_name_plural = "message words"
        indexes = [
            # search by words
            GinIndex(fields=["words"], name="semantic_messagewords_words"),
        ]
        triggers = [
            is_of_its_message("semantic_messagewords", "m.state = 'complete'"),
            pgtrigger.Trigger(
                name="never_changes",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                func=refuse("semantic_messagewords_never_changes"),
            ),
        ]

    def __str__(self) -> str:
        return f"words of message {self.pk}"
