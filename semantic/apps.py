"""Django's entry to semantic derivatives."""

from __future__ import annotations

from django.apps import AppConfig


class SemanticConfig(AppConfig):
    """Vectors and words of messages, and the search over them."""

    name = "semantic"
    default_auto_field = "django.db.models.BigAutoField"
    verbose_name = "Semantic memory"

    def ready(self) -> None:
        """Check the bounds."""
