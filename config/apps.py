"""The composition root as a Django app: it owns `manage.py up` and makes tasks find Celery."""

from __future__ import annotations

import gc

from django.apps import AppConfig

# This app is the first: until it is ready, what is loaded stays, and looking for garbage in it
# again and again finds none.
gc.disable()


class ConfigConfig(AppConfig):
    """Loads the Celery application with Django: every process sends to the same broker."""

    name = "config"

    def ready(self) -> None:
        """Load what registers itself, and collect garbage from here on."""
        from config import celery, checks  # noqa: F401, PLC0415 - needs the settings

        # A full collection holds every thread up: never again for what is there for good.
        gc.freeze()
        gc.enable()
