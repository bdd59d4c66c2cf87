"""Looking at what is derived from messages. Nothing is changed here, and no vector is shown.

`manage.py semantic_rebuild` derives everything anew.
"""

from __future__ import annotations

from datetime import timedelta

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from recovery.admin import InspectionAdmin
from semantic import indexes, transitions
from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt


@admin.register(Manifest)
class ManifestAdmin(InspectionAdmin):
    """By what vectors are computed, and how far each is."""

    list_display = (
        "generation", "state", "provider", "model", "version", "dimensions", "created_at",
        "activated_at", "finished_at",
    )  # fmt: skip
    list_filter = ("state", "provider")
    fields = (
        "generation", "state", "progress", "index", "provider", "model", "version",
        "dimensions", "query_prefix", "passage_prefix", "digest", "created_at", "activated_at",
        "finished_at",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="progress")
    def progress(self, manifest: Manifest) -> str:
        """How many messages have their vector; counted for one manifest's own page alone."""
        if manifest.state == Manifest.State.RETIRED:
            return "-"
        so_far = transitions.progress(manifest)
        return (
            f"{so_far.done} of {so_far.total} messages, {so_far.open} waiting or at work, "
            f"{so_far.failed} failed"
        )

    @admin.display(description="index", boolean=True)
    def index(self, manifest: Manifest) -> bool:
        """Whether there is an index beside the comparison one by one."""
        return indexes.is_built(manifest)


@admin.register(SemanticJob)
class SemanticJobAdmin(InspectionAdmin):
    """Which messages wait, are at work, or ended, under which manifest."""

    list_display = (
        "id", "state", "code", "manifest", "message_id", "attempts", "round",
        "lease_expires_at", "age",
    )  # fmt: skip
    list_filter = ("state", "error_code", "manifest")
    list_select_related = ("manifest",)
    search_fields = ("=id", "=message__id", "=conversation__id")
    fields = (
        "manifest", "message_id", "conversation_id", "person_id", "digest", "state",
        "error_code", "round", "attempts", "write_mark", "claim_token", "lease_expires_at",
        "created_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="error code", ordering="error_code")
    def code(self, job: SemanticJob) -> str:
        """The code, not its sentence."""
        return str(job.error_code) or "-"

    @admin.display(description="age")
    def age(self, job: SemanticJob) -> timedelta:
        """How long it took, or has taken by now, in whole seconds."""
        passed = (job.finished_at or timezone.now()) - job.created_at
        return timedelta(seconds=round(passed.total_seconds()))


@admin.register(Embedding)
class EmbeddingAdmin(InspectionAdmin):
    """Which messages have a vector, of which text and by which attempt."""

    list_display = ("id", "manifest", "message_id", "job_id", "attempt", "digest", "created_at")
    list_filter = ("manifest",)
    list_select_related = ("manifest",)
    search_fields = ("=message__id", "=conversation__id", "=job__id")
    fields = (
        "manifest", "message_id", "conversation_id", "person_id", "job_id", "attempt",
        "digest", "created_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave the numbers where they are: something of the text can be guessed from them."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.defer("vector")


@admin.register(SemanticReceipt)
class SemanticReceiptAdmin(InspectionAdmin):
    """How each attempt ended."""

    list_display = (
        "id", "created_at", "outcome", "code", "job_id", "message_id", "attempt",
        "manifest_generation",
    )  # fmt: skip
    list_filter = ("outcome", "error_code")
    search_fields = ("=job_id", "=message_id")

    @admin.display(description="error code", ordering="error_code")
    def code(self, receipt: SemanticReceipt) -> str:
        """The code, not its sentence."""
        return str(receipt.error_code) or "-"
