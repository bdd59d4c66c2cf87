"""One POST and the bytes of its answer. Nothing is ever sent twice.

httpx over aiohttp's connections: aiohttp costs a tenth of httpx's own pool per streamed chunk.
Three of its habits are worked around here. It names most lost connections `ConnectTimeout`, so
the aiohttp error behind the httpx one is read; one aiohttp error comes through raw; and an
unset connection limit means 100.
"""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from http.cookiejar import DefaultCookiePolicy
from typing import ClassVar, Final, Required, TypedDict

import aiohttp
import httpx
from aiohttp import connector
from httpx_aiohttp import AiohttpTransport

from recovery.errors import ErrorCode, ProviderFailed
from turns import bounds
from turns.providers import faults

EVENT_STREAM: Final = "text/event-stream"
JSON: Final = "application/json"
# An error's body only sharpens a code: neither its size nor its pace may hold a turn up.
ERROR_BODY_MAX_BYTES: Final = 64 * bounds.KIB
ERROR_BODY_SECONDS: Final = 5.0
# A request that fails on a dying idle connection cannot be sent again, so none is used that a
# server might be about to close; the shortest idle time in the field is 5 s. The next step of a
# tool loop comes sooner than this.
KEEP_ALIVE_SECONDS: Final = 2.0
# httpx raises the first two; aiohttp's malformed chunks come through as they are.
NETWORK_ERRORS: Final = (httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError)


class Connection(TypedDict, total=False):
    """How a service is reached; what is left out takes the default of `ServiceClient`."""

    base_url: Required[str]
    api_key: str
    connect_seconds: float
    idle_seconds: float
    max_connections: int
    verify: ssl.SSLContext | bool


class ServiceClient:
    """Connections to one service. They belong to the event loop that first uses them."""

    accept: ClassVar[str]

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str = "",
        connect_seconds: float = bounds.PROVIDER_CONNECT_SECONDS,
        idle_seconds: float = bounds.PROVIDER_IDLE_SECONDS,
        max_connections: int = bounds.TURNS_PER_PROCESS + 100,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        headers = {
            "Content-Type": JSON,
            "Accept": self.accept,
            # compression delays frames and hides their size
            "Accept-Encoding": "identity",
            "User-Agent": "holdfast",
        }
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        context = ssl.create_default_context() if verify is True else verify

        def session() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=max_connections, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=context
                ),
                # one person's request must not carry what another's answer has set
                cookie_jar=aiohttp.DummyCookieJar(),
                response_class=_Response,
            )

        self._client = httpx.AsyncClient(
            # verify=False only spares httpx a context of its own: the connector has ours
            transport=AiohttpTransport(client=session, verify=False, trust_env=False),
            headers=headers,
            timeout=httpx.Timeout(
                connect=connect_seconds,
                pool=connect_seconds,
                read=idle_seconds,
                write=idle_seconds,
            ),
            follow_redirects=False,
            trust_env=False,
        )
        self._client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _send(self, path: str, body: bytes) -> httpx.Response:
        try:
            request = self._client.build_request("POST", self._base_url + path, content=body)
            return await self._client.send(request, stream=True)
        except NETWORK_ERRORS as error:
            failure = _before_the_answer(error)
        except (httpx.InvalidURL, httpx.CookieConflict, ValueError):
            # the last is aiohttp's for an address that has a password, beside our key
            failure = ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE, reason="address")
        raise failure


class EventStreamClient(ServiceClient):
    """For requests that are answered with an event stream."""

    accept = EVENT_STREAM

    @asynccontextmanager
    async def post(self, path: str, body: bytes) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Send `body` once and give the chunks of the answer. Leaving closes the connection.

        Raises:
            ProviderFailed: on entry, nothing usable was answered; while iterating, the
                connection broke (`truncated_stream`) or fell silent (`provider_timeout`).
        """
        response = await self._send(path, body)
        try:
            await _require_stream(response)
            async with aclosing(_chunks(response)) as chunks:
                yield chunks
        finally:
            with suppress(*NETWORK_ERRORS):
                await response.aclose()


class JsonClient(ServiceClient):
    """For requests that are answered with one JSON text."""

    accept = JSON

    async def post(self, path: str, body: bytes, *, max_bytes: int) -> bytes:
        """Send `body` once and return the whole answer, which is not parsed here.

        Raises:
            ProviderFailed: nothing usable was answered, the connection broke or fell silent, or
                the answer is larger than `max_bytes` and was not read any further.
        """
        response = await self._send(path, body)
        try:
            await _require_success(response)
            answer = bytearray()
            async with aclosing(_chunks(response)) as chunks:
                async for chunk in chunks:
                    answer += chunk
                    if len(answer) > max_bytes:
                        raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="size")
            return bytes(answer)
        finally:
            with suppress(*NETWORK_ERRORS):
                await response.aclose()


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
        return
    except NETWORK_ERRORS as error:
        failure = _inside_the_answer(error)
    raise failure


async def _require_success(response: httpx.Response) -> None:
    """Return when the answer is 200 in plain bytes."""
    if response.status_code != httpx.codes.OK:
        body = await _error_body(response)
        raise ProviderFailed(
            faults.from_status(response.status_code, body),
            reason="status",
            http_status=response.status_code,
        )
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="content_encoding")


async def _require_stream(response: httpx.Response) -> None:
    """Return when the answer is an event stream in plain bytes."""
    await _require_success(response)
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != EVENT_STREAM:
        code = faults.from_body(await _error_body(response))
        raise ProviderFailed(code or ErrorCode.PROVIDER_PROTOCOL, reason="content_type")


async def _error_body(response: httpx.Response) -> bytes:
    """Return the body, or nothing when it is too large, too slow, packed or broken."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        return b""
    body = bytearray()
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS), aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > ERROR_BODY_MAX_BYTES:
                    return b""
    except (TimeoutError, ProviderFailed):
        return b""
    return bytes(body)


def _before_the_answer(error: Exception) -> ProviderFailed:
    """Return what it means that no answer began. The request may have been received."""
    match _origin(error):
        case aiohttp.ClientSSLError():
            return ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE, reason="tls")
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE, reason="connect")
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return ProviderFailed(ErrorCode.PROVIDER_UNREACHABLE, reason="address")
        case aiohttp.SocketTimeoutError() | httpx.TimeoutException() | TimeoutError():
            return ProviderFailed(ErrorCode.PROVIDER_TIMEOUT, reason="no_answer")
        case aiohttp.ClientResponseError():
            return ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="http")
        case _:
            return ProviderFailed(ErrorCode.PROVIDER_UNAVAILABLE, reason="disconnected")


def _inside_the_answer(error: Exception) -> ProviderFailed:
    """Return what it means that the body did not go on."""
    match _origin(error):
        case aiohttp.SocketTimeoutError() | httpx.TimeoutException() | TimeoutError():
            return ProviderFailed(ErrorCode.PROVIDER_TIMEOUT, reason="silence")
        case aiohttp.ClientResponseError():
            return ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="http")
        case _:
            return ProviderFailed(ErrorCode.TRUNCATED_STREAM, reason="disconnected")


class _Response(aiohttp.ClientResponse):
    """An answer whose body ends with its connection.

    aiohttp (3.14) closes the connection at a malformed chunk without telling the body, which
    would then be waited for for ever.
    """

    async def start(self, connection: connector.Connection) -> aiohttp.ClientResponse:
        started = await super().start(connection)
        protocol = connection.protocol
        closed = protocol.closed if protocol is not None else None
        if closed is not None:
            # the connection may outlive this answer
            answer = weakref.ref(self)
            closed.add_done_callback(lambda ended: _end(answer(), ended))
        return started


def _end(answer: aiohttp.ClientResponse | None, closed: asyncio.Future[None]) -> None:
    if not closed.cancelled():
        closed.exception()
    if answer is None or answer.content.is_eof() or answer.content.exception() is not None:
        return
    answer.content.set_exception(aiohttp.ClientPayloadError("connection closed"))


def _origin(error: Exception) -> BaseException:
    """Return the aiohttp error behind an httpx one: httpx-aiohttp's names mislead."""
    cause = error.__cause__
    return cause if isinstance(cause, aiohttp.ClientError | OSError) else error
