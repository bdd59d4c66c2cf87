"""Looking at jobs and at where they may work. Nothing is changed here; content is a size and a
digest."""

from __future__ import annotations

import shlex
from typing import Final

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from recovery.admin import ChildInline, InspectionAdmin, OwnedRowAdmin
from recovery.timeline import Moment
from turns.digests import digest
from work import bounds
from work.models import Computer, JobReport, WorkJob, WorkProviderStep, WorkStep
from work.timeline import timeline

# Kilobytes a row, and needed on a job's own page alone.
LARGE: Final = ("goal", "context", "prompt", "authority", "budget", "acp_session_id")


def _size(text: str) -> str:
    return f"{len(text.encode())} bytes, {digest(text)}" if text else "none"


class ProviderStepInline(ChildInline):
    """The requests of the job, over all its generations."""

    model = WorkProviderStep
    max_num = bounds.PROVIDER_STEPS_PER_JOB
    ordering = ("sequence",)
    fields = (
        "sequence", "generation", "state", "error_code", "model", "request_bytes",
        "request_digest", "offers_tools", "usage", "anomaly_count", "started_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave what the responses said where it is."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.defer("text")


class StepInline(ChildInline):
    """The calls of the job, without what was asked and answered."""

    model = WorkStep
    max_num = bounds.TOOL_CALLS_HARD_STOP
    ordering = ("sequence",)
    fields = (
        "sequence", "generation", "name", "state", "error_code", "effect", "arguments_digest",
        "result_bytes", "result_digest", "requested_at", "started_at", "finished_at",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave what was asked and answered where it is."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.defer("arguments", "result")


class ReportInline(ChildInline):
    """The job's last words, as sizes."""

    model = JobReport
    max_num = len(JobReport.Kind)
    ordering = ("pk",)
    fields = ("kind", "generation", "byte_count", "digest", "created_at")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave the words where they are."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.defer("text")


@admin.register(WorkJob)
class WorkJobAdmin(OwnedRowAdmin):
    """Jobs, with everything that happened to each."""

    list_display = (
        "id", "state", "kind", "code", "generation", "attempts", "owner", "age", "person",
        "conversation", "computer", "model",
    )  # fmt: skip
    list_filter = ("state", "kind", "error_code")
    list_select_related = ("person", "conversation", "computer")
    search_fields = ("=id", "=conversation__id", "=person__username")
    actions = ("run_recovery",)
    inlines = (ProviderStepInline, StepInline, ReportInline)
    fields = (
        "person", "conversation", "kind", "state", "error_code", "timeline",
        "owner", "generation", "attempts", "planned_releases", "write_mark",
        "asked_goal", "asked_context", "asked_prompt", "request_digest", "before_message_id",
        "model", "budget", "computer", "host_id", "authority_snapshot",
        "branch", "base_commit", "external_session", "acp_cursor",
        "created_at", "claimed_at", "cancel_requested_at", "deadline_at", "finished_at",
        "queue_deadline_at", "next_dispatch_at", "dispatch_count", "ended_revision",
    )  # fmt: skip
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave what is large where it is."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.defer(*LARGE)

    def moments(self, row: WorkJob) -> list[Moment]:
        """Return its timeline."""
        return timeline(row)

    @admin.display(description="goal")
    def asked_goal(self, job: WorkJob) -> str:
        """Size and digest."""
        return _size(job.goal)

    @admin.display(description="context")
    def asked_context(self, job: WorkJob) -> str:
        """Size and digest."""
        return _size(job.context)

    @admin.display(description="prompt")
    def asked_prompt(self, job: WorkJob) -> str:
        """Size and digest."""
        return _size(job.prompt)

    @admin.display(description="external session")
    def external_session(self, job: WorkJob) -> str:
        """Size and digest."""
        return _size(job.acp_session_id)

    @admin.display(description="authority")
    def authority_snapshot(self, job: WorkJob) -> SafeString:
        """What was allowed at admission; of each check its name."""
        said = {**job.authority, "checks": sorted(job.authority.get("checks", ()))}
        return format_html_join(
            "",
            "<div><code>{}</code> {}</div>",
            (
                (name, ", ".join(value) if isinstance(value, list) else value)
                for name, value in sorted(said.items())
                if value
            ),
        )


@admin.register(Computer)
class ComputerAdmin(InspectionAdmin):
    """Where jobs may work. `manage.py add_computer` and its siblings change it."""

    list_display = ("id", "person", "name", "tier", "host_id", "created_at", "revoked_at")
    list_filter = ("tier",)
    list_select_related = ("person",)
    search_fields = ("=id", "=person__username", "name")
    fields = (
        "person", "name", "tier", "host_id", "listed_roots", "listed_checks", "created_at",
        "revoked_at",
    )  # fmt: skip
    readonly_fields = fields

    @admin.display(description="roots")
    def listed_roots(self, computer: Computer) -> SafeString:
        """The directories, one a line."""
        return format_html_join("", "<div>{}</div>", ((root,) for root in computer.roots))

    @admin.display(description="checks")
    def listed_checks(self, computer: Computer) -> SafeString:
        """The commands by name, one a line."""
        return format_html_join(
            "",
            "<div><code>{}</code> {}</div>",
            ((name, shlex.join(words)) for name, words in sorted(computer.checks.items())),
        )


@admin.register(JobReport)
class JobReportAdmin(InspectionAdmin):
    """Reports as sizes and digests."""

    list_display = ("id", "job", "kind", "generation", "byte_count", "created_at")
    list_filter = ("kind",)
    search_fields = ("=id", "=job__id")
    fields = ("job", "kind", "generation", "byte_count", "digest", "message", "created_at")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Model]:
        """Leave the words where they are."""
        rows: QuerySet[Model] = super().get_queryset(request)
        return rows.select_related("job", "shown_by").defer(
            "text", *(f"job__{column}" for column in LARGE)
        )

    @admin.display(description="message")
    def message(self, report: JobReport) -> str:
        """Which message of the conversation shows it."""
        shown = getattr(report, "shown_by", None)
        return "none" if shown is None else str(shown.message_id)
