"""Django's entry to delegated jobs."""

from __future__ import annotations

from django.apps import AppConfig


class WorkConfig(AppConfig):
    """Jobs, where they may work, and what became of them."""

    name = "work"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Delegated jobs"
