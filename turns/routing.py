"""The WebSocket addresses of conversations."""

from __future__ import annotations

from typing import Any

from django.urls import path, re_path

from turns.consumers import conversation_view, no_view

# Channels routes ASGI applications where Django's stubs know views.
_conversation: Any = conversation_view
_nothing: Any = no_view

websocket_urlpatterns = [
    path("ws/conversations/<str:conversation_id>/", _conversation),
    re_path("", _nothing),
]
