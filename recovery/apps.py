"""Django's entry to the kernel."""

from __future__ import annotations

from django.apps import AppConfig


class RecoveryConfig(AppConfig):
    """Who is alive, who may write, and what is done about work whose owner died."""

    name = "recovery"
    label = "recovery"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Recovery"

    def ready(self) -> None:
        """Give each database connection its runtime's name, and register the system checks."""
        from recovery import checks, connections  # noqa: F401, PLC0415 - needs the registry

        connections.watch()
