"""Drives one answer from the first byte to its verdict, the same way for every protocol.

The rule about the end, in one place. The terminal event decides, and nothing it follows can
undo it; the body's own end decides nothing. After it the rest of the body is heard out for a
moment: most services close at once, which also frees the connection for the next step, and
some hold the body open for minutes, so the wait is bounded and the connection is then closed.
What is heard there is discarded and counted, except that a second terminal event makes the
answer a failure (`terminal_event_repeated`, or what the later error says), because two
verdicts are none. Damage or silence in that moment is ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import structlog

from recovery.errors import ProviderFailed
from turns.providers.sse import EventDecoder, ServerSentEvent
from turns.providers.transport import EventStreamClient
from turns.providers.types import ProviderEvent, Usage

HEAR_OUT_SECONDS: Final = 0.25

log = structlog.get_logger()


class Answer(Protocol):
    """What one protocol makes of the events of one response."""

    @property
    def response_id(self) -> str | None:
        """The response's name, once it was given."""

    @property
    def usage(self) -> Usage | None:
        """The token counts, once they were reported."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is needed from the stream."""

    def take(self, event: ServerSentEvent) -> Sequence[ProviderEvent]:
        """Return what `event` adds; once ended, only take note of it.

        Raises:
            ProviderFailed: the stream cannot be trusted any further, or says that it failed.
        """

    def close(self) -> Sequence[ProviderEvent]:
        """Return the closing events, the verdict last.

        Raises:
            ProviderFailed: there was no terminal event, or more than one, or nothing in it.
        """


async def relay(
    client: EventStreamClient, path: str, body: bytes, answer: Answer, *, model: str
) -> AsyncGenerator[ProviderEvent, None]:
    """POST `body` once and yield what `answer` makes of the stream.

    A failure is logged with the model, the status, our code and the reason: a field and a rule
    of our own frames, never a value.

    Raises:
        ProviderFailed: with the response id and usage known by then. It has no cause or
            context, so nothing the provider said hangs on to it.
    """
    try:
        decoder = EventDecoder()
        async with client.post(path, body) as chunks:
            async for chunk in chunks:
                try:
                    for event in decoder.feed(chunk):
                        for heard in answer.take(event):
                            yield heard
                except ProviderFailed:
                    if not answer.ended:
                        raise
                    break
                if answer.ended:
                    await _hear_out(chunks, decoder, answer)
                    break
        for heard in answer.close():
            yield heard
        return
    except ProviderFailed as failed:
        failure = ProviderFailed(
            failed.code,
            reason=failed.reason,
            http_status=failed.http_status,
            response_id=answer.response_id,
            usage=answer.usage,
        )
    log.warning(
        "provider.failed",
        model=model,
        error_code=failure.code.value,
        status=failure.http_status,
        reason=failure.reason,
    )
    raise failure


async def _hear_out(
    chunks: AsyncGenerator[bytes, None], decoder: EventDecoder, answer: Answer
) -> None:
    with suppress(TimeoutError, ProviderFailed):
        async with asyncio.timeout(HEAR_OUT_SECONDS):
            async for chunk in chunks:
                for event in decoder.feed(chunk):
                    answer.take(event)
