"""The WebSocket of a conversation: /ws/conversations/{id}/?after=CURSOR.

It shows what is committed and writes nothing. Everything shown comes from the process's reader
(`turns/live.py`); here is who may look, and the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.utils.http import is_same_domain

from recovery.executor import in_thread
from turns import bounds, credentials, live
from turns.ids import parse_id
from turns.projection import Cursor

log = structlog.get_logger(__name__)

TRY_AGAIN_LATER: Final = 1013

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


async def conversation_view(
    scope: MutableMapping[str, Any], receive: Receive, send: Send
) -> None:
    """Serve one WebSocket until either side closes it.

    Closes with 4401 for nobody signed in (or no longer), 4404 for an unknown or foreign
    conversation (or one that was removed), 4413 for a frame that is too large. A page of
    another site is turned away before the handshake.
    """
    await receive()  # websocket.connect
    headers = list(scope["headers"])
    if not _is_own_page(headers):
        await send({"type": "websocket.close"})
        return
    try:
        credential = await in_thread(credentials.of_headers, headers)
    except DatabaseError as error:
        log.warning("live.not_admitted", exc_info=error)
        await _refuse(send, TRY_AGAIN_LATER)
        return
    if credential is None:
        await _refuse(send, live.CLOSED_NOT_SIGNED_IN)
        return
    conversation_id = parse_id(scope["url_route"]["kwargs"]["conversation_id"])
    if conversation_id is None:
        await _refuse(send, live.CLOSED_NOT_FOUND)
        return
    after = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("after", [""])[0]
    await send({"type": "websocket.accept"})
    view = live.View(conversation_id, credential, Cursor.parse(after))
    reader = live.start()
    reader.join(view)
    sending = asyncio.create_task(_send_all(view, reader, send))
    try:
        await _receive_all(view, receive)
    finally:
        reader.leave(view)
        sending.cancel()
        # the client may be gone: then there is nobody to tell
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sending


async def no_view(_scope: Message, receive: Receive, send: Send) -> None:
    """Answer for every other address: there is nothing here."""
    await receive()
    await _refuse(send, live.CLOSED_NOT_FOUND)


async def _refuse(send: Send, code: int) -> None:
    """Accept and close: before the handshake, a browser is told no code."""
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.close", "code": code})


async def _send_all(view: live.View, reader: live.Reader, send: Send) -> None:
    while True:
        await view.ready.wait()
        view.ready.clear()
        while (text := view.take()) is not None:
            await send({"type": "websocket.send", "text": text})
        if view.close_code is not None:
            await send({"type": "websocket.close", "code": view.close_code})
            return
        if view.cursor is None:
            reader.want(view)


async def _receive_all(view: live.View, receive: Receive) -> None:
    """Return when the connection is over. A client has nothing to say but `ping`."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        content = message.get("bytes") or (message.get("text") or "").encode()
        if len(content) > bounds.FRAME_IN_MAX_BYTES:
            view.close(live.CLOSED_TOO_LARGE)
        elif _is_ping(content):
            view.answer_ping()


def _is_ping(content: bytes) -> bool:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("type") == "ping"


def _is_own_page(headers: Headers) -> bool:
    """Whether the page that opens this is ours. Programs send no Origin; browsers always do."""
    origin = host = None
    for name, value in headers:
        if name == b"origin":
            origin = value.decode("latin-1")
        elif name == b"host":
            host = value.decode("latin-1")
    if origin is None:
        return True
    try:
        asked = urlsplit(origin.lower())
    except ValueError:
        return False
    return asked.netloc == (host or "").lower() or any(
        _is_trusted(asked, trusted.lower()) for trusted in settings.CSRF_TRUSTED_ORIGINS
    )


def _is_trusted(origin: SplitResult, trusted: str) -> bool:
    """Whether `trusted` names the origin, as `https://host` or for all below it with `*.`."""
    scheme, _, host = trusted.partition("://")
    if scheme != origin.scheme:
        return False
    if host.startswith("*."):
        return is_same_domain(origin.netloc, host[1:])
    return host == origin.netloc
