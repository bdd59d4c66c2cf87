"""Bodies that are too large are refused before they are kept.

Django takes the whole body of a request to disk before a view may refuse it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.http import JsonResponse

from recovery.errors import ErrorCode

BODY_MAX_BYTES: Final = 1024 * 1024
# What a refused client may still send before the connection is closed over it.
LINGER_MAX_BYTES: Final = 16 * 1024 * 1024
LINGER_SECONDS: Final = 5.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


def limit_body(application: Application) -> Application:
    """Return the HTTP application, which is handed 1 MiB of a body at most.

    A declared length over the bound is refused at once with 413; a body without one when it
    passes the bound, unless the answer has begun by then.
    """

    async def limited(scope: Message, receive: Receive, send: Send) -> None:
        if _declared_bytes(scope) > BODY_MAX_BYTES:
            await _refuse(receive, send, complete=False)
            return
        taken = 0
        complete = answering = False

        async def receive_limited() -> Message:
            nonlocal taken, complete
            message = await receive()
            taken += len(message.get("body", b""))
            complete = not message.get("more_body")
            # As if the client had gone: Django stops and closes what it has kept.
            return message if taken <= BODY_MAX_BYTES else {"type": "http.disconnect"}

        async def send_noticed(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        await application(scope, receive_limited, send_noticed)
        if taken > BODY_MAX_BYTES and not answering:
            await _refuse(receive, send, complete=complete)

    return limited


def _declared_bytes(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def _refuse(receive: Receive, send: Send, *, complete: bool) -> None:
    """Answer 413, and let the client finish so that it can read that.

    A connection closed over unread bytes is reset, and the answer is lost with it.
    """
    code = ErrorCode.REQUEST_TOO_LARGE
    content = JsonResponse({"code": code.value, "message": str(code.label)}).content
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": True})
    if not complete:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                await _let_go_by(receive)
    await send({"type": "http.response.body", "body": b""})


async def _let_go_by(receive: Receive) -> None:
    left = LINGER_MAX_BYTES
    while left > 0:
        message = await receive()
        left -= len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body"):
            return
