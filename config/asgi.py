"""The web process: HTTP, WebSockets and, through lifespan, what runs beside them."""

from __future__ import annotations

import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

from config.embedded.children import watch_parent

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
watch_parent()
http = get_asgi_application()

_router = ProtocolTypeRouter({"http": http, "websocket": URLRouter([])})


async def application(scope, receive, send):  # type: ignore[no-untyped-def]
    """Route one connection."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await _router(scope, receive, send)
