"""`webhook_post`: send text to an address its owner has allowed. One attempt, whatever happens.

The step is `running` in the database before the request leaves, under a key drawn for this one
call, which travels as `Idempotency-Key`. Nothing is ever sent twice, and no redirect is
followed: it would carry the text to an address nobody allowed.
"""

from __future__ import annotations

import json
from typing import Annotated, Final
from urllib.parse import urlsplit

import httpx
from pydantic import Field

from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode
from recovery.executor import in_thread
from turns import bounds
from turns.models import WebhookAddress
from turns.providers import jsontext
from turns.tools.registry import Arguments, Effect, Invocation, State, Tool, ToolFailed
from turns.tools.runner import UNKNOWN_EFFECT

BODY_MAX_BYTES: Final = 16 * bounds.KIB
ANSWER_MAX_BYTES: Final = 4 * bounds.KIB
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0

# The request never left, so nothing can have happened.
NOT_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.InvalidURL,
    httpx.UnsupportedProtocol,
)


class WebhookPost(Arguments):
    """Where to and what."""

    url: Annotated[str, Field(min_length=1, max_length=bounds.WEBHOOK_URL_MAX_BYTES)]
    body: Annotated[str, Field(max_length=BODY_MAX_BYTES, description="JSON text to send")]


async def webhook_post(invocation: Invocation[WebhookPost]) -> str:
    """Return the receiver's status and the beginning of its answer, as JSON."""
    url, body = invocation.arguments.url, invocation.arguments.body.encode()
    _require_json(invocation.arguments.body)
    if not await in_thread(_allowed, invocation.owner_id, url):
        raise ToolFailed(ErrorCode.ADDRESS_NOT_ALLOWED, state=State.REFUSED)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": str(invocation.key),
        "Accept-Encoding": "identity",
        "User-Agent": "holdfast",
    }
    sent = False
    try:
        # A client for one request: a kept connection could have died and invite a second try.
        async with (
            httpx.AsyncClient(
                timeout=timeout, follow_redirects=False, trust_env=False
            ) as client,
            client.stream("POST", url, content=body, headers=headers) as response,
        ):
            sent = True
            answer = await _beginning(response)
    except NOT_SENT:
        raise ToolFailed(
            ErrorCode.TOOL_FAILED, result="The address could not be reached; nothing was sent."
        ) from None
    except (httpx.HTTPError, httpx.StreamError, OSError):
        if not sent:
            raise ToolFailed(
                ErrorCode.OUTCOME_UNKNOWN, state=State.INTERRUPTED, result=UNKNOWN_EFFECT
            ) from None
        answer = ""  # the status has arrived: that is an answer
    result = json.dumps({"status": response.status_code, "answer": answer}, ensure_ascii=False)
    if not response.is_success:
        raise ToolFailed(ErrorCode.TOOL_FAILED, result=result)
    return result


def _require_json(body: str) -> None:
    try:
        jsontext.decode(body)
    except jsontext.MalformedJson:
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS, result="`body` must be JSON text."
        ) from None
    if len(body.encode()) > BODY_MAX_BYTES:
        raise ToolFailed(ErrorCode.INVALID_TOOL_ARGUMENTS, result="`body` is too long.")


def _allowed(owner_id: int, url: str) -> bool:
    """Return whether exactly this address is on the owner's list."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        return False
    return WebhookAddress.objects.filter(owner_id=owner_id, url=url).exists()


async def _beginning(response: httpx.Response) -> str:
    taken = b""
    async for chunk in response.aiter_raw():
        taken += chunk
        if len(taken) > ANSWER_MAX_BYTES:
            break
    return cut_utf8(taken.decode(errors="replace"), ANSWER_MAX_BYTES)


TOOL: Final = Tool(
    name="webhook_post",
    description=(
        "Send a JSON document to one of the web addresses the person has allowed. "
        "It is sent once. Use it only when the person asks for it."
    ),
    arguments=WebhookPost,
    effect=Effect.EXTERNAL,
    call=webhook_post,
    timeout_seconds=30,
)
