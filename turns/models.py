"""Conversations and the durable record of every text turn.

    Turn          queued -> running -> completed | failed | cancelled | interrupted
                  (queued may end directly)
    Message       streaming -> complete | failed | cancelled | interrupted
                  (a user's is born complete)
    Receipt       captured -> completed | failed | cancelled | interrupted
    ProviderStep  started -> completed | failed | cancelled | interrupted
    ToolStep      requested -> running -> succeeded | failed | refused | cancelled
                  | unavailable | interrupted

The database holds every rule said here: see each model's constraints and triggers.
"""

from __future__ import annotations

from typing import Final

import pgtrigger
from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import (
    at_most,
    error_code_field,
    fence_presented,
    json_at_most,
    lifecycle_constraints,
)
from recovery.triggers import (
    changed,
    child_fence,
    child_row_triggers,
    in_states,
    owned_row_triggers,
    refuse,
    refuse_update,
)
from turns import bounds, lifecycles

DIGEST_CHARS: Final = 64


class Conversation(models.Model):
    """One person's thread of messages; `revision` rises with every transition worth showing."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    title = models.CharField(max_length=bounds.TITLE_MAX_CHARS, blank=True, default="")
    client_key = models.CharField(  # noqa: DJ001  null is "no key", which is not unique
        max_length=bounds.CLIENT_KEY_MAX_CHARS, null=True, blank=True
    )
    revision = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "client_key"], name="turns_conversation_one_per_client_key"
            ),
        ]
        indexes = [
            # the conversation list, newest activity first
            models.Index(
                fields=["owner", "-updated_at", "-id"], name="turns_conversation_recent"
            ),
        ]
        triggers = [
            refuse_update("turns_conversation", "identity_is_fixed", changed(["owner_id"])),
            refuse_update(
                "turns_conversation", "revision_never_falls", "NEW.revision < OLD.revision"
            ),
        ]

    def __str__(self) -> str:
        return f"conversation {self.pk}"


class Message(models.Model):
    """What was said, by whom; an assistant's text arrives in chunks and is folded in at its
    end."""

    class Role(models.TextChoices):
        USER = "user"
        ASSISTANT = "assistant"

    class State(models.TextChoices):
        STREAMING = "streaming"
        COMPLETE = "complete"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    LIFECYCLE = lifecycles.MESSAGE

    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    role = models.CharField(max_length=16, choices=Role.choices)
    state = models.CharField(max_length=16, choices=State.choices)
    text = models.TextField(blank=True, default="")
    # SHA-256 of the text in hexadecimal; empty while it still streams
    digest = models.CharField(max_length=DIGEST_CHARS, blank=True, default="")
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)
    edited_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            *lifecycle_constraints("turns_message", lifecycles.MESSAGE),
            models.CheckConstraint(
                condition=Q(role="assistant") | Q(role="user", state="complete"),
                name="turns_message_user_is_born_complete",
            ),
            models.CheckConstraint(
                condition=at_most("text", bounds.MESSAGE_ROW_MAX_BYTES)
                & (~Q(role="user") | at_most("text", bounds.USER_MESSAGE_MAX_BYTES))
                & (~Q(role="assistant") | at_most("text", bounds.ASSISTANT_TEXT_MAX_BYTES)),
                name="turns_message_text_bounded",
            ),
        ]
        indexes = [
            # a conversation's messages, newest first; the history sent to a provider
            models.Index(fields=["conversation", "-id"], name="turns_message_in_order"),
        ]
        triggers = [
            refuse_update("turns_message", "moves", lifecycles.MESSAGE.violation_sql()),
            refuse_update(
                "turns_message",
                "identity_is_fixed",
                changed(["conversation_id", "role", "created_at"]),
            ),
            # a person may correct their own words; what the assistant said stays as it was said
            refuse_update(
                "turns_message",
                "answer_is_final",
                "OLD.role = 'assistant' AND " + in_states("OLD", lifecycles.MESSAGE.terminal),
            ),
        ]

    def __str__(self) -> str:
        return f"message {self.pk}"


class Turn(models.Model):
    """One question and the work of answering it; the row a runtime owns.

        queued -> running -> completed | failed | cancelled | interrupted

    `limits` is what was allowed at admission. `deadline_at` is set by the claim. `late_bytes`
    and `late_digest` count what a provider sent after a cancel, which is kept nowhere else.
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
                    "model",
                    "limits",
                    "created_at",
                    "queue_deadline_at",
                ],
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
        ]

    def __str__(self) -> str:
        return f"turn {self.pk}"


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


class ProviderStep(models.Model):
    """One request to a model provider and how it ended.

    `last_seq` is the last text chunk that came from this response, so the text of each response
    can be read back from the log while the turn runs.
    """

    class State(models.TextChoices):
        STARTED = "started"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    LIFECYCLE = lifecycles.PROVIDER_STEP

    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, related_name="provider_steps", db_index=False
    )
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
    last_seq = models.IntegerField(null=True, blank=True)
    anomaly_count = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            *lifecycle_constraints(
                "turns_providerstep",
                lifecycles.PROVIDER_STEP,
                silent=["completed"],
                spoken=["failed", "interrupted"],
            ),
            models.CheckConstraint(
                condition=at_most("response_id", bounds.PROVIDER_ID_MAX_BYTES),
                name="turns_providerstep_response_id_bounded",
            ),
            models.CheckConstraint(
                condition=json_at_most("usage", bounds.USAGE_MAX_BYTES),
                name="turns_providerstep_usage_bounded",
            ),
            models.CheckConstraint(
                condition=Q(sequence__gte=1, sequence__lte=bounds.PROVIDER_STEPS_PER_TURN),
                name="turns_providerstep_count_bounded",
            ),
            models.UniqueConstraint(
                fields=["turn", "sequence"], name="turns_providerstep_one_per_sequence"
            ),
            models.UniqueConstraint(
                fields=["turn"],
                condition=Q(state="started"),
                name="turns_providerstep_one_open_per_turn",
            ),
        ]
        triggers = child_row_triggers(
            "turns_providerstep",
            lifecycles.PROVIDER_STEP,
            fixed=[
                "turn_id",
                "generation",
                "sequence",
                "model",
                "request_digest",
                "request_bytes",
                "offers_tools",
                "started_at",
            ],
            parent="turns_turn",
            parent_key="turn_id",
            parent_states=["running"],
        )

    def __str__(self) -> str:
        return f"provider step {self.pk}"


class ToolStep(models.Model):
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

    turn = models.ForeignKey(
        Turn, on_delete=models.CASCADE, related_name="tool_steps", db_index=False
    )
    provider_step = models.ForeignKey(
        ProviderStep, on_delete=models.CASCADE, related_name="tool_steps"
    )
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
        constraints = [
            *lifecycle_constraints(
                "turns_toolstep",
                lifecycles.TOOL_STEP,
                silent=["succeeded"],
                spoken=["failed", "refused", "unavailable", "interrupted"],
            ),
            models.CheckConstraint(
                condition=~Q(state__in=["running", "succeeded"]) | Q(started_at__isnull=False),
                name="turns_toolstep_running_was_started",
            ),
            models.CheckConstraint(
                condition=at_most("arguments", bounds.TOOL_ARGUMENTS_MAX_BYTES),
                name="turns_toolstep_arguments_bounded",
            ),
            models.CheckConstraint(
                condition=at_most("result", bounds.TOOL_RESULT_MAX_BYTES),
                name="turns_toolstep_result_bounded",
            ),
            models.CheckConstraint(
                condition=at_most("call_id", bounds.PROVIDER_ID_MAX_BYTES)
                & at_most("item_id", bounds.PROVIDER_ID_MAX_BYTES)
                & at_most("name", bounds.TOOL_NAME_MAX_BYTES),
                name="turns_toolstep_ids_bounded",
            ),
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
            fixed=[
                "turn_id",
                "generation",
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
            ],
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


class ApiToken(models.Model):
    """A bearer token, kept as a digest: a copy of the table signs nobody in."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    digest = models.CharField(max_length=DIGEST_CHARS, unique=True)
    created_at = models.DateTimeField(db_default=Now())
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"token {self.pk}"


class WebhookAddress(models.Model):
    """An address its owner allows the tool `webhook_post` to send to."""

    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    url = models.TextField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=at_most("url", bounds.WEBHOOK_URL_MAX_BYTES),
                name="turns_webhookaddress_url_bounded",
            ),
            models.UniqueConstraint(
                fields=["owner", "url"], name="turns_webhookaddress_one_per_url"
            ),
        ]

    def __str__(self) -> str:
        return f"webhook address {self.pk}"
