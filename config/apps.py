"""The composition root as a Django app: it owns `manage.py up` and makes tasks find Celery."""

from __future__ import annotations

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    """Loads the Celery application with Django: every process sends to the same broker."""

    name = "config"

    def ready(self) -> None:
        """Load what registers itself."""
        from config import celery, checks  # noqa: F401, PLC0415 - needs the settings
