"""The row a runtime owns while it answers one question."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pgtrigger
from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from recovery.constraints import (
    error_code_field,
    fence_presented,
    json_at_most,
    lifecycle_constraints,
)
from recovery.models import Runtime
from recovery.triggers import (
    SNAPSHOT_IS_OLDER,
    changed,
    owned_row_triggers,
    refuse,
    refuse_update,
)
from turns import bounds, lifecycles
from turns.digests import DIGEST_CHARS
from turns.models.conversations import Conversation, Message

# A turn is claimed once: what is broken off ends, and nobody takes it over.
_CLAIMED: Final = "OLD.state = 'queued' AND NEW.state = 'running'"
# Who claimed it, when, and until when: fixed from then on.
_CLAIM: Final = ("owner", "claim_token", "claimed_at", "deadline_at")


class TurnQuerySet(models.QuerySet["Turn"]):
    """Questions about turns."""

    def open(self) -> TurnQuerySet:
        """Those that have not ended."""
        return self.filter(state__in=sorted(lifecycles.TURN.open))

    def of_person(self, owner_id: int) -> TurnQuerySet:
        """Those in the conversations of one person."""
        return self.filter(conversation__owner_id=owner_id)

    def running_in(self, runtime: UUID) -> TurnQuerySet:
        """Those one runtime has claimed and not ended."""
        return self.filter(state="running", owner=runtime)

    def cancel_requested(self) -> TurnQuerySet:
        """Those somebody asked to stop."""
        return self.filter(cancel_requested_at__isnull=False)

    def orphaned(self) -> TurnQuerySet:
        """Running ones whose owner is not a living runtime."""
        living = Runtime.objects.living().filter(pk=OuterRef("owner"))
        return self.filter(~Exists(living), state="running")


class Turn(models.Model):
    """One question and the work of answering it; the row a runtime owns.

        queued -> running -> completed | failed | cancelled | interrupted

    `limits` is what was allowed at admission. The one claim sets `owner`, `claim_token`,
    `claimed_at` and `deadline_at` for good. `late_bytes` and `late_digest` count what a
    provider sent after a cancel, which is kept nowhere else.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    LIFECYCLE = lifecycles.TURN

    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="turns", db_index=False
    )
    user_message = models.OneToOneField(
        Message, on_delete=models.CASCADE, related_name="asked_by"
    )
    assistant_message = models.OneToOneField(
        Message, on_delete=models.CASCADE, related_name="answered_by"
    )
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    error_code = error_code_field()
    client_key = models.CharField(  # noqa: DJ001  null is "no key", which is not unique
        max_length=bounds.CLIENT_KEY_MAX_CHARS, null=True, blank=True
    )
    # SHA-256 of what was asked, kept here because a person may correct the message later
    request_digest = models.CharField(max_length=DIGEST_CHARS)
    model = models.CharField(max_length=bounds.MODEL_NAME_MAX_CHARS)
    limits = models.JSONField()

    owner = models.UUIDField(null=True, blank=True)
    generation = models.IntegerField(default=0)
    claim_token = models.UUIDField(null=True, blank=True)
    write_mark = models.BigIntegerField(default=0)
    attempts = models.PositiveSmallIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    queue_deadline_at = models.DateTimeField()
    next_dispatch_at = models.DateTimeField()
    dispatch_count = models.PositiveSmallIntegerField(default=0)

    created_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    late_bytes = models.PositiveIntegerField(default=0)
    late_digest = models.CharField(max_length=DIGEST_CHARS, blank=True, default="")

    objects = TurnQuerySet.as_manager()

    class Meta:
        constraints = [
            *lifecycle_constraints(
                "turns_turn",
                lifecycles.TURN,
                silent=["completed"],
                spoken=["failed", "interrupted"],
            ),
            fence_presented("turns_turn"),
            models.CheckConstraint(
                condition=~Q(state="running")
                | Q(
                    owner__isnull=False,
                    claim_token__isnull=False,
                    deadline_at__isnull=False,
                    claimed_at__isnull=False,
                    generation__gte=1,
                ),
                name="turns_turn_running_is_owned",
            ),
            models.CheckConstraint(
                condition=json_at_most("limits", bounds.LIMITS_MAX_BYTES),
                name="turns_turn_limits_bounded",
            ),
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(state__in=["queued", "running"]),
                name="turns_turn_one_active_per_conversation",
            ),
            models.UniqueConstraint(
                fields=["conversation", "client_key"], name="turns_turn_one_per_client_key"
            ),
        ]
        indexes = [
            # the sweep: orphans in owner order, and the deadline pass index-only
            models.Index(
                fields=["owner", "id"],
                include=["deadline_at"],
                condition=Q(state="running"),
                name="turns_turn_running",
            ),
            # dispatch again, and never_started
            models.Index(
                fields=["created_at", "id"],
                condition=Q(state="queued"),
                name="turns_turn_queued",
            ),
            # the live snapshot's latest turn; the rate window
            models.Index(fields=["conversation", "id"], name="turns_turn_in_order"),
        ]
        triggers = [
            *owned_row_triggers(
                "turns_turn",
                lifecycles.TURN,
                fixed=[
                    "conversation_id",
                    "user_message_id",
                    "assistant_message_id",
                    "client_key",
                    "request_digest",
                    "model",
                    "limits",
                    "created_at",
                    "queue_deadline_at",
                ],
            ),
            refuse_update(
                "turns_turn",
                "claim_is_counted",
                f"NEW.generation - OLD.generation <> ({_CLAIMED})::int "
                f"OR NEW.attempts - OLD.attempts <> ({_CLAIMED})::int",
                of=["state", "generation", "attempts"],
            ),
            refuse_update(
                "turns_turn",
                "claim_is_fixed",
                f"NOT ({_CLAIMED}) AND ({changed(_CLAIM)})",
                of=_CLAIM,
            ),
            # chunks have no foreign key (it costs 0.8 of the insert); nobody may orphan them
            pgtrigger.Trigger(
                name="chunks_are_folded_first",
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                func=f"""
                    IF EXISTS (SELECT 1 FROM turns_textchunk WHERE turn_id = OLD.id) THEN
                        {refuse("turns_turn_chunks_are_folded_first")}
                    END IF;
                    RETURN NULL;
                """,  # noqa: S608  a constant, no input
            ),
            # one that came since its snapshot was taken would not be seen there
            pgtrigger.Trigger(
                name="deleted_read_committed",
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                condition=pgtrigger.Condition(SNAPSHOT_IS_OLDER),
                func=refuse("turns_turn_deleted_read_committed"),
            ),
        ]

    def __str__(self) -> str:
        return f"turn {self.pk}"
