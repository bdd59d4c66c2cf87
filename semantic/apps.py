"""Django's entry to semantic derivatives."""

from __future__ import annotations

from django.apps import AppConfig


class SemanticConfig(AppConfig):
    """Vectors and words of messages, and the search over them."""

    name = "semantic"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Semantic memory"

    def ready(self) -> None:
        """Check the bounds; offer search to turns, jobs and the page."""
        from semantic import checks  # noqa: F401, PLC0415 - needs the registry of models
        from semantic.panel import PANEL  # noqa: PLC0415
        from semantic.tools import TOOL  # noqa: PLC0415
        from turns.panels import panels  # noqa: PLC0415
        from turns.tools import registry  # noqa: PLC0415

        panels.register(PANEL)
        registry.register(TOOL)
