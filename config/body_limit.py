"""Bodies that are too large are refused before they are kept.

Django takes the whole body of a request to disk before a view may refuse it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.http import JsonResponse

from recovery.errors import ErrorCode

BODY_MAX_BYTES: Final = 1024 * 1024

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
            await _refuse(send)
            return
        taken = 0
        answering = False

        async def receive_limited() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            # As if the client had gone: Django stops and closes what it has kept.
            return message if taken <= BODY_MAX_BYTES else {"type": "http.disconnect"}

        async def send_noticed(message: Message) -> None:
            nonlocal answering
            answering = True
            await send(message)

        await application(scope, receive_limited, send_noticed)
        if taken > BODY_MAX_BYTES and not answering:
            await _refuse(send)

    return limited


def _declared_bytes(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def _refuse(send: Send) -> None:
    code = ErrorCode.REQUEST_TOO_LARGE
    content = JsonResponse({"code": code.value, "message": str(code.label)}).content
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": content})
