"""What a turn consists of: its receipt, its steps, and its text while it arrives."""

from __future__ import annotations

from typing import Final

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import BaseConstraint, Q
from django.db.models.functions import Now

from recovery.constraints import (
    at_most,
    error_code_field,
    json_at_most,
    lifecycle_constraints,
)
from recovery.triggers import child_fence, child_row_triggers, refuse
from turns import bounds, lifecycles
from turns.digests import DIGEST_CHARS
from turns.models.turn import Turn

# What a step is, as opposed to what became of it.
PROVIDER_STEP_IDENTITY: Final = (
    "sequence",
    "model",
    "request_digest",
    "request_bytes",
    "offers_tools",
    "started_at",
)
TOOL_STEP_IDENTITY: Final = (
    "provider_step_id",
    "sequence",
    "call_id",
    "item_id",
    "name",
    "effect",
    "arguments",
    "arguments_digest",
    "invocation_key",
    "requested_at",
)


def provider_step_constraints(table: str) -> list[BaseConstraint]:
    """Return what every table of provider steps promises, whoever's they are."""
    return [
        *lifecycle_constraints(
            table,
            lifecycles.PROVIDER_STEP,
            silent=["completed"],
            spoken=["failed", "interrupted"],
        ),
        models.CheckConstraint(
            condition=at_most("response_id", bounds.PROVIDER_ID_MAX_BYTES),
            name=f"{table}_response_id_bounded",
        ),
        models.CheckConstraint(
            condition=json_at_most("usage", bounds.USAGE_MAX_BYTES),
            name=f"{table}_usage_bounded",
        ),
    ]


def tool_step_constraints(table: str) -> list[BaseConstraint]:
    """Return what every table of tool steps promises, whoever's they are."""
    return [
        *lifecycle_constraints(
            table,
            lifecycles.TOOL_STEP,
            silent=["succeeded"],
            spoken=["failed", "refused", "unavailable", "interrupted"],
        ),
        models.CheckConstraint(
            condition=~Q(state__in=["running", "succeeded"]) | Q(started_at__isnull=False),
            name=f"{table}_running_was_started",
        ),
        models.CheckConstraint(
            condition=at_most("arguments", bounds.TOOL_ARGUMENTS_MAX_BYTES),
            name=f"{table}_arguments_bounded",
        ),
        models.CheckConstraint(
            condition=at_most("result", bounds.TOOL_RESULT_MAX_BYTES),
            name=f"{table}_result_bounded",
        ),
        models.CheckConstraint(
            condition=at_most("call_id", bounds.PROVIDER_ID_MAX_BYTES)
            & at_most("item_id", bounds.PROVIDER_ID_MAX_BYTES)
            & at_most("name", bounds.TOOL_NAME_MAX_BYTES),
            name=f"{table}_ids_bounded",
        ),
    ]


class Receipt(models.Model):
    """What was sent for a turn and what it used: names, digests and counts, never the words."""

    class State(models.TextChoices):
        CAPTURED = "captured"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    LIFECYCLE = lifecycles.RECEIPT

    turn = models.OneToOneField(Turn, on_delete=models.CASCADE, related_name="receipt")
    generation = models.IntegerField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.CAPTURED)
    error_code = error_code_field()
    provider_api = models.CharField(max_length=16)
    model = models.CharField(max_length=bounds.MODEL_NAME_MAX_CHARS)
    instructions_digest = models.CharField(max_length=DIGEST_CHARS)
    input_digest = models.CharField(max_length=DIGEST_CHARS)
    tools_digest = models.CharField(max_length=DIGEST_CHARS)
    message_count = models.PositiveIntegerField()
    byte_count = models.PositiveIntegerField()
    # token counts summed over the turn's provider steps; null as long as none was reported
    usage = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            *lifecycle_constraints(
                "turns_receipt",
                lifecycles.RECEIPT,
                silent=["completed"],
                spoken=["failed", "interrupted"],
            ),
            models.CheckConstraint(
                condition=json_at_most("usage", bounds.USAGE_MAX_BYTES),
                name="turns_receipt_usage_bounded",
            ),
        ]
        triggers = child_row_triggers(
            "turns_receipt",
            lifecycles.RECEIPT,
            fixed=[
                "turn_id",
                "generation",
                "provider_api",
                "model",
                "instructions_digest",
                "input_digest",
                "tools_digest",
                "message_count",
                "byte_count",
                "created_at",
            ],
            parent="turns_turn",
            parent_key="turn_id",
            parent_states=["running"],
        )

    def __str__(self) -> str:
        return f"receipt {self.pk}"


class ProviderStepFields(models.Model):
    """One request to a model provider and how it ended, whatever work asked for it."""

    class State(models.TextChoices):
        STARTED = "started"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    LIFECYCLE = lifecycles.PROVIDER_STEP

    generation = models.IntegerField()
    sequence = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.STARTED)
    error_code = error_code_field()
    model = models.CharField(max_length=bounds.MODEL_NAME_MAX_CHARS)
    request_digest = models.CharField(max_length=DIGEST_CHARS)
    request_bytes = models.PositiveIntegerField()
    offers_tools = models.BooleanField(default=False)
    response_id = models.TextField(null=True, blank=True)  # noqa: DJ001  null: not known
    usage = models.JSONField(null=True, blank=True)
    anomaly_count = models.PositiveIntegerField(default=0)
    # the numbers of calls of earlier responses that this one asked for again: none runs twice
    repeats = ArrayField(models.SmallIntegerField(), db_default=[])
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class ProviderStep(ProviderStepFields):
    """A turn's request to a model provider.

    `last_seq` is the last text chunk that came from this response and `text_length` the number
    of characters the turn's text had by then, so what each response said can be told apart: in
    the log while the turn runs, in the folded message afterwards.
    """

    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, related_name="provider_steps", db_index=False
    )
    last_seq = models.IntegerField(null=True, blank=True)
    text_length = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            *provider_step_constraints("turns_providerstep"),
            models.CheckConstraint(
                condition=Q(sequence__gte=1, sequence__lte=bounds.PROVIDER_STEPS_PER_TURN),
                name="turns_providerstep_count_bounded",
            ),
            models.CheckConstraint(
                condition=Q(repeats__len__lte=bounds.TOOL_CALLS_HARD_STOP),
                name="turns_providerstep_repeats_bounded",
            ),
            models.UniqueConstraint(
                fields=["turn", "sequence"], name="turns_providerstep_one_per_sequence"
            ),
            models.UniqueConstraint(
                fields=["turn"],
                condition=Q(state="started"),
                name="turns_providerstep_one_open_per_turn",
            ),
            # what a tool step's provider step and turn refer to together
            models.UniqueConstraint(fields=["id", "turn"], name="turns_providerstep_of_turn"),
        ]
        triggers = child_row_triggers(
            "turns_providerstep",
            lifecycles.PROVIDER_STEP,
            fixed=["turn_id", "generation", *PROVIDER_STEP_IDENTITY],
            parent="turns_turn",
            parent_key="turn_id",
            parent_states=["running"],
        )

    def __str__(self) -> str:
        return f"provider step {self.pk}"


class ToolStepFields(models.Model):
    """One tool call a model asked for: requested, started at most once, and what came of it.

    `invocation_key` is ours and unguessable: an external effect is sent under it as idempotency
    key. `result` is what the model is told; `result_bytes` its size before any cut.
    """

    class State(models.TextChoices):
        REQUESTED = "requested"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        REFUSED = "refused"
        CANCELLED = "cancelled"
        UNAVAILABLE = "unavailable"
        INTERRUPTED = "interrupted"

    class Effect(models.TextChoices):
        READ = "read"
        REVERSIBLE = "reversible"
        EXTERNAL = "external"

    LIFECYCLE = lifecycles.TOOL_STEP

    generation = models.IntegerField()
    sequence = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.REQUESTED)
    error_code = error_code_field()
    call_id = models.TextField()
    item_id = models.TextField(blank=True, default="")
    name = models.TextField()
    effect = models.CharField(max_length=16, choices=Effect.choices, default=Effect.READ)
    # verbatim as the model wrote it; the digest is of the canonical form where it parses
    arguments = models.TextField(blank=True, default="")
    arguments_digest = models.CharField(max_length=DIGEST_CHARS)
    invocation_key = models.UUIDField(unique=True)
    result = models.TextField(blank=True, default="")
    result_digest = models.CharField(max_length=DIGEST_CHARS, blank=True, default="")
    result_bytes = models.PositiveBigIntegerField(default=0)
    requested_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class ToolStep(ToolStepFields):
    """A tool call of a turn."""

    # in the database one foreign key is of both: `turns_toolstep_provider_step_of_turn`
    turn = models.ForeignKey(
        Turn,
        on_delete=models.CASCADE,
        related_name="tool_steps",
        db_index=False,
        db_constraint=False,
    )
    provider_step = models.ForeignKey(
        ProviderStep, on_delete=models.CASCADE, related_name="tool_steps", db_constraint=False
    )

    class Meta:
        constraints = [
            *tool_step_constraints("turns_toolstep"),
            models.UniqueConstraint(
                fields=["turn", "call_id"], name="turns_toolstep_one_per_call_id"
            ),
            models.UniqueConstraint(
                fields=["turn", "sequence"], name="turns_toolstep_one_per_sequence"
            ),
        ]
        triggers = child_row_triggers(
            "turns_toolstep",
            lifecycles.TOOL_STEP,
            fixed=["turn_id", "generation", *TOOL_STEP_IDENTITY],
            parent="turns_turn",
            parent_key="turn_id",
            parent_states=["running"],
        )

    def __str__(self) -> str:
        return f"tool step {self.pk}"


class TextChunk(models.Model):
    """A committed piece of an assistant's text; folded into the message when the turn ends."""

    turn = models.ForeignKey(
        Turn,
        on_delete=models.DO_NOTHING,
        related_name="chunks",
        db_constraint=False,
        db_index=False,
    )
    seq = models.IntegerField()
    generation = models.IntegerField()
    text = models.TextField()

    pk = models.CompositePrimaryKey("turn_id", "seq")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=at_most("text", bounds.CHUNK_MAX_BYTES),
                name="turns_textchunk_text_bounded",
            ),
        ]
        triggers = [
            child_fence(
                "turns_textchunk",
                parent="turns_turn",
                parent_key="turn_id",
                parent_states=["running"],
            ),
            pgtrigger.Trigger(
                name="text_is_append_only",
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                func=refuse("turns_textchunk_text_is_append_only"),
            ),
        ]

    def __str__(self) -> str:
        return f"chunk {self.seq} of turn {self.turn_id}"
