"""Django's entry to delegated jobs."""

from __future__ import annotations

from django.apps import AppConfig


class WorkConfig(AppConfig):
    """Jobs, where they may work, and what became of them."""

    name = "work"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Delegated jobs"

    def ready(self) -> None:
        """Let the sweep settle jobs, check the bounds, show jobs and offer them to turns."""
        from recovery import runner  # noqa: PLC0415 - needs the registry of models
        from turns.panels import panels  # noqa: PLC0415
        from turns.tools import registry  # noqa: PLC0415
        from work import checks  # noqa: F401, PLC0415
        from work.panel import PANEL  # noqa: PLC0415
        from work.recovery import WorkRecovery  # noqa: PLC0415
        from work.tools import TOOLS  # noqa: PLC0415

        runner.register(WorkRecovery())
        panels.register(PANEL)
        for tool in TOOLS:
            registry.register(tool)
