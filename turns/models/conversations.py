"""Conversations and what was said in them."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import at_most, lifecycle_constraints
from recovery.triggers import in_states, refuse_change, refuse_update
from turns import bounds, lifecycles
from turns.digests import DIGEST_CHARS


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
    # the last revision that changed something else than the latest turn: a view older than
    # this is shown the conversation anew
    rewritten_revision = models.BigIntegerField(default=0, db_default=0)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["owner", "client_key"], name="turns_conversation_one_per_client_key"
            ),
            # what rows of other apps that name a conversation and its owner refer to together
            models.UniqueConstraint(fields=["id", "owner"], name="turns_conversation_of_owner"),
        ]
        indexes = [
            # the conversation list, newest activity first
            models.Index(
                fields=["owner", "-updated_at", "-id"], name="turns_conversation_recent"
            ),
        ]
        triggers = [
            refuse_change("turns_conversation", "identity_is_fixed", ["owner_id"]),
            refuse_update(
                "turns_conversation",
                "revision_never_falls",
                "NEW.revision < OLD.revision",
                of=["revision"],
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
            # A conversation's messages, newest first; the history sent to a provider. Also what
            # rows of other apps that name a message and its conversation refer to together.
            models.UniqueConstraint(
                fields=["conversation", "id"], name="turns_message_in_conversation"
            ),
        ]
        triggers = [
            refuse_update(
                "turns_message", "moves", lifecycles.MESSAGE.violation_sql(), of=["state"]
            ),
            refuse_change(
                "turns_message", "identity_is_fixed", ["conversation_id", "role", "created_at"]
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
