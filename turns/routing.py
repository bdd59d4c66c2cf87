"""The WebSocket addresses of conversations."""

from __future__ import annotations

from django.urls import path, re_path

from turns.consumers import conversation_view, no_view

websocket_urlpatterns = [
    path("ws/conversations/<str:conversation_id>/", conversation_view),
    re_path("", no_view),
]
