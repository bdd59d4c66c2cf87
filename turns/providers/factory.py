"""The text provider that the settings describe."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from turns.providers.chat import ChatProvider
from turns.providers.responses import ResponsesProvider
from turns.providers.types import TextProvider


def from_settings() -> TextProvider:
    """Return the provider of this installation. Call it on the event loop that will use it.

    Raises:
        ImproperlyConfigured: `LLM_API` names no protocol, or `LLM_BASE_URL` is missing.
    """
    if not settings.LLM_BASE_URL:
        raise ImproperlyConfigured("LLM_BASE_URL is required: the address of the model service")
    match settings.LLM_API:
        case "responses" | "local":
            return ResponsesProvider(
                base_url=settings.LLM_BASE_URL, api_key=settings.LLM_API_KEY
            )
        case "chat":
            return ChatProvider(base_url=settings.LLM_BASE_URL, api_key=settings.LLM_API_KEY)
        case _:
            raise ImproperlyConfigured("LLM_API must be responses, chat or local")
