"""The operator's view of runtimes and of what recovery did. Looking only, and one verb."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from recovery.models import Pulse, RecoveryEvent, RecoveryFailure, ReleaseSwitch, Runtime
from recovery.sweep import sweep
from recovery.timeline import Moment

if TYPE_CHECKING:  # generic for the type checker alone
    _ModelAdmin = admin.ModelAdmin[Any]
    _Inline = admin.TabularInline[Any, Any]
else:
    _ModelAdmin = admin.ModelAdmin
    _Inline = admin.TabularInline


class ReadOnly:
    """Nothing is added, changed or deleted through the admin."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are admitted by the product alone."""
        del request, obj
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A row changes through its transitions alone."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A row goes through erasure and retention alone."""
        del request, obj
        return False


class ChildInline(ReadOnly, _Inline):
    """Rows of one owned row, at most as many as its bounds allow."""

    extra = 0
    can_delete = False
    show_change_link = False


class InspectionAdmin(ReadOnly, _ModelAdmin):
    """Base of every admin here: read-only, newest first, cheap on large tables.

    A subclass lists `run_recovery` among its `actions` to offer the sweep.
    """

    list_per_page = 50
    show_full_result_count = False
    ordering: ClassVar[tuple[str, ...]] = ("-pk",)

    @admin.action(description="Run recovery now (all kinds)", permissions=["run_recovery"])
    def run_recovery(self, request: HttpRequest, queryset: models.QuerySet[Any]) -> None:
        """Do what the sweep and the commands do, whatever rows were ticked."""
        del queryset
        for report in sweep().values():
            level = messages.SUCCESS if report.all_settled else messages.WARNING
            self.message_user(request, f"{report.kind}: {report.counted}", level)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask for no ticked row where none is looked at: there may be none to tick."""
        if request.POST.get("action") == "run_recovery":
            request.POST = request.POST.copy()  # type: ignore[assignment]  # as Django's own
            request.POST.update({ACTION_CHECKBOX_NAME: "none", "select_across": "1"})
        return super().changelist_view(request, extra_context)

    def has_run_recovery_permission(self, request: HttpRequest) -> bool:
        """Recovery is for those who were given it."""
        return request.user.has_perm("recovery.run_recovery")


class OwnedRowAdmin(InspectionAdmin):
    """Base of the admins of rows that a runtime owns: what happened to each, and how old it is.

    Lists show the code itself: it is what logs, commands and filters say.
    """

    @abstractmethod
    def moments(self, row: Any) -> list[Moment]:
        """Return what happened to the row, oldest first."""

    @admin.display(description="error code", ordering="error_code")
    def code(self, row: Any) -> str:
        """The code, not its sentence."""
        return str(row.error_code) or "-"

    @admin.display(description="age")
    def age(self, row: Any) -> timedelta:
        """How long it took, or has taken by now, in whole seconds."""
        passed = (row.finished_at or timezone.now()) - row.created_at
        return timedelta(seconds=round(passed.total_seconds()))

    @admin.display(description="timeline")
    def timeline(self, row: Any) -> SafeString:
        """What happened, oldest first."""
        return format_html_join(
            "",
            "<div><code>{}</code> {} <strong>{}</strong></div>",
            (
                (
                    "" if moment.at is None else f"{moment.at:%Y-%m-%d %H:%M:%S.%f}",
                    moment.what,
                    moment.error_code,
                )
                for moment in self.moments(row)
            ),
        )


@admin.register(Runtime)
class RuntimeAdmin(InspectionAdmin):
    """Who is alive, and how the others ended."""

    list_display = (
        "id", "role", "host", "pid", "started_at", "renewed_at", "lease_expires_at",
        "stopped_at", "stop_reason",
    )  # fmt: skip
    list_filter = ("role", "stop_reason")
    ordering = ("-started_at", "pk")
    actions = ("run_recovery",)


@admin.register(Pulse)
class PulseAdmin(InspectionAdmin):
    """When the database was last seen, and when the last sweep ended."""

    list_display = ("last_at", "unbroken_since", "swept_at")


@admin.register(RecoveryEvent)
class RecoveryEventAdmin(InspectionAdmin):
    """What recovery did, row by row."""

    list_display = (
        "created_at", "kind", "row_id", "cause", "action", "error_code", "generation", "owner",
    )  # fmt: skip
    list_filter = ("kind", "cause", "action")
    search_fields = ("=row_id",)


@admin.register(RecoveryFailure)
class RecoveryFailureAdmin(InspectionAdmin):
    """What recovery could not do yet, and when it tries again."""

    list_display = (
        "kind", "row_id", "error_code", "reason", "failed_count", "skipped_count", "last_at",
        "next_retry_at",
    )  # fmt: skip
    list_filter = ("kind", "error_code")
    actions = ("run_recovery",)


@admin.register(ReleaseSwitch)
class ReleaseSwitchAdmin(InspectionAdmin):
    """What is paused. `manage.py pause` and `resume` change it."""

    list_display = ("kind", "state", "changed_at")
