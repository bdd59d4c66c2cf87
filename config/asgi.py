"""The web process: HTTP, WebSockets, and through lifespan what runs beside them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
# Before anything below: models may be imported only when the apps are set up.
http: Any = get_asgi_application()

from config.body_limit import limit_body  # noqa: E402
from config.embedded.children import watch_parent  # noqa: E402
from config.logging import contain_tracebacks  # noqa: E402
from config.web import WebRuntime  # noqa: E402
from turns.routing import websocket_urlpatterns  # noqa: E402

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

watch_parent()

_router = ProtocolTypeRouter(
    {
        "http": limit_body(http),
        "websocket": URLRouter(websocket_urlpatterns),
    }
)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one connection, or the life of the process."""
    if scope["type"] == "lifespan":
        await _live(receive, send)
    else:
        await _router(scope, receive, send)


async def _live(receive: Receive, send: Send) -> None:
    """Start with the server and stop with it. Channels' router has no lifespan of its own."""
    await receive()
    contain_tracebacks()
    runtime = WebRuntime()
    try:
        await runtime.start()
    except TimeoutError:
        await runtime.stop()
        await send({"type": "lifespan.startup.failed", "message": "no runtime registered"})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await runtime.stop()
    await send({"type": "lifespan.shutdown.complete"})
