"""Looking at conversations and turns. Nothing is changed here; content is a size and a
digest."""

from __future__ import annotations

from typing import ClassVar

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from recovery.admin import ChildInline, InspectionAdmin, OwnedRowAdmin
from recovery.counting import counted
from recovery.timeline import Moment
from turns import bounds
from turns.models import (
    ApiToken,
    Conversation,
    Message,
    Note,
    ProviderStep,
    Receipt,
    ToolStep,
    Turn,
    WebhookAddress,
)
from turns.timeline import timeline


class ReceiptInline(ChildInline):
    """What was sent, in counts and digests."""

    model = Receipt
    fields = (
        "state", "error_code", "provider_api", "model", "message_count", "byte_count",
        "input_digest", "usage", "created_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields


class ProviderStepInline(ChildInline):
    """The requests of the turn."""

    model = ProviderStep
    max_num = bounds.PROVIDER_STEPS_PER_TURN
    ordering = ("sequence",)
    fields = (
        "sequence", "state", "error_code", "model", "request_bytes", "request_digest",
        "offers_tools", "usage", "last_seq", "anomaly_count", "started_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields


class ToolStepInline(ChildInline):
    """The calls of the turn, without what was asked and answered."""

    model = ToolStep
    max_num = bounds.TOOL_CALLS_HARD_STOP
    ordering = ("sequence",)
    fields = (
        "sequence", "name", "state", "error_code", "effect", "arguments_digest",
        "result_bytes", "result_digest", "requested_at", "started_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields


def _size(row: Message | Note) -> str:
    return counted(len(row.text.encode()), "byte")


@admin.register(Turn)
class TurnAdmin(OwnedRowAdmin):
    """Turns, with everything that happened to each."""

    list_display = (
        "id", "state", "code", "generation", "owner", "age", "conversation", "model",
    )  # fmt: skip
    list_filter = ("state", "error_code")
    list_select_related = ("conversation",)
    search_fields = ("=id", "=conversation__id")
    actions = ("run_recovery",)
    inlines = (ReceiptInline, ProviderStepInline, ToolStepInline)
    fields = (
        "conversation", "state", "error_code", "timeline", "owner", "generation", "attempts",
        "write_mark", "model", "limits", "question", "answer", "chunks_waiting",
        "queue_deadline_at", "next_dispatch_at", "dispatch_count", "deadline_at",
        "late_bytes", "late_digest",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Read the messages along."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.select_related("user_message", "assistant_message")

    def moments(self, row: Turn) -> list[Moment]:
        """Return its timeline."""
        return timeline(row)

    @admin.display(description="question")
    def question(self, turn: Turn) -> str:
        """Size and digest."""
        return f"{_size(turn.user_message)}, {turn.user_message.digest}"

    @admin.display(description="answer")
    def answer(self, turn: Turn) -> str:
        """State, size and digest."""
        answer = turn.assistant_message
        return f"{answer.state}, {_size(answer)}, {answer.digest or 'not ended'}"

    @admin.display(description="chunks waiting")
    def chunks_waiting(self, turn: Turn) -> int:
        """Committed pieces of the answer that its end will fold into the message."""
        return turn.chunks.count()


@admin.register(Conversation)
class ConversationAdmin(InspectionAdmin):
    """Conversations, without their titles."""

    list_display = ("id", "owner", "revision", "created_at", "updated_at")
    list_select_related = ("owner",)
    search_fields = ("=id", "=owner__username")
    fields = ("owner", "revision", "created_at", "updated_at")
    readonly_fields = fields


@admin.register(Message)
class MessageAdmin(InspectionAdmin):
    """Messages as sizes and digests."""

    list_display = ("id", "conversation", "role", "state", "size", "created_at")
    list_filter = ("role", "state")
    list_select_related = ("conversation",)
    search_fields = ("=id", "=conversation__id")
    fields = (
        "conversation", "role", "state", "size", "digest", "created_at", "finished_at",
        "edited_at",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="size")
    def size(self, message: Message) -> str:
        """Bytes of its text."""
        return _size(message)


@admin.register(ApiToken)
class ApiTokenAdmin(InspectionAdmin):
    """Tokens: whose, and when they were used."""

    list_display = ("id", "user", "created_at", "last_used_at", "revoked_at")
    list_select_related = ("user",)
    fields: ClassVar[tuple[str, ...]] = ("user", "created_at", "last_used_at", "revoked_at")
    readonly_fields = fields


@admin.register(WebhookAddress)
class WebhookAddressAdmin(InspectionAdmin):
    """Where a person lets the tool `webhook_post` send."""

    list_display = ("id", "owner", "url", "created_at")
    list_select_related = ("owner",)
    fields = ("owner", "url", "created_at")
    readonly_fields = fields


@admin.register(Note)
class NoteAdmin(InspectionAdmin):
    """What people had remembered, as sizes."""

    list_display = ("id", "owner", "size", "created_at")
    list_select_related = ("owner",)
    fields = ("owner", "size", "invocation_key", "created_at")
    readonly_fields = fields

    @admin.display(description="size")
    def size(self, note: Note) -> str:
        """Bytes of its text."""
        return _size(note)
