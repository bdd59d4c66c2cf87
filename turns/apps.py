"""Django's entry to text turns."""

from __future__ import annotations

from django.apps import AppConfig


class TurnsConfig(AppConfig):
    """Conversations, text turns, their tools and the page."""

    name = "turns"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Conversations and turns"
