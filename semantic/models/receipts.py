"""What became of each attempt, without a word of what was said."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import error_code_field
from recovery.triggers import refuse
from semantic.models.scope import is_kept


class SemanticReceipt(models.Model):
    """How one attempt of one job ended; one whose worker died leaves none. Append-only; it
    outlives job and message, and can be removed only when the message is gone.

    It holds ids, counts and codes: no text, no digest of one, nothing a provider said.
    `invalidated` is written when the attempt's message had changed by the time it was done, or
    was forgotten on request.
    """

    class Outcome(models.TextChoices):
        COMPLETED = "completed"
        FAILED = "failed"
        INVALIDATED = "invalidated"

    job_id = models.BigIntegerField()
    message_id = models.BigIntegerField()
    manifest_generation = models.PositiveIntegerField()
    attempt = models.PositiveSmallIntegerField()
    outcome = models.CharField(max_length=16, choices=Outcome.choices)
    error_code = error_code_field()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(outcome="failed") & ~Q(error_code="")
                | Q(outcome__in=["completed", "invalidated"], error_code=""),
                name="semantic_semanticreceipt_error_code_is_honest",
            ),
            # What became of a message's attempts. One that is told twice, as its end was not
            # known, is written once.
            models.UniqueConstraint(
                fields=["message_id", "job_id", "attempt", "outcome"],
                name="semantic_semanticreceipt_one_per_outcome",
            ),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="append_only",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                func=refuse("semantic_semanticreceipt_append_only"),
            ),
            is_kept("semantic_semanticreceipt"),
        ]

    def __str__(self) -> str:
        return f"receipt {self.pk}"
