"""Django's entry to text turns."""

from __future__ import annotations

from django.apps import AppConfig


class TurnsConfig(AppConfig):
    """Conversations, text turns, their tools and the page."""

    name = "turns"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Conversations and turns"

    def ready(self) -> None:
        """Let the sweep settle turns, and register the system checks."""
        from recovery import runner  # noqa: PLC0415 - needs the registry of models
        from turns import checks  # noqa: F401, PLC0415
        from turns.recovery import TurnRecovery  # noqa: PLC0415

        runner.register(TurnRecovery())
