"""A service that speaks `POST {base_url}/embeddings` as OpenAI's does.

One clock counts connecting, writing, waiting and reading of all requests for a batch.

The rule about refusals. One text that is too long makes a service refuse all of its batch (400,
413, 422; llama.cpp says 500), so a refused batch is split once, in two. A half that is refused
too is asked for text by text, and what is refused alone fails alone: at most n + 3 requests for
n texts. Two halves answered 500 are a service that is broken, and not asked about again; nor is
any other failure, nor anything after it: the texts still open fail with it.
"""

from __future__ import annotations

import asyncio
import atexit
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack
from weakref import WeakSet

import structlog

from recovery.bounds import cut_utf8, storable
from recovery.errors import ErrorCode, ProviderFailed
from semantic import bounds
from semantic.embedders import answers
from semantic.embedders.embedder import Identity, Purpose, Vector
from semantic.embedders.own_loop import OwnLoop
from turns.providers.transport import Connection, JsonClient

PATH: Final = "/embeddings"
BROKEN: Final = ErrorCode.PROVIDER_UNAVAILABLE
# How a service says that it does not want this batch, unless its words say that no batch will
# do: the key, the model, the money.
REFUSED: Final = frozenset(
    {
        (400, ErrorCode.PROVIDER_REJECTED),
        (400, ErrorCode.PROVIDER_CONTEXT_EXCEEDED),
        (413, ErrorCode.PROVIDER_REJECTED),
        (413, ErrorCode.PROVIDER_CONTEXT_EXCEEDED),
        (422, ErrorCode.PROVIDER_REJECTED),
        (422, ErrorCode.PROVIDER_CONTEXT_EXCEEDED),
        (500, BROKEN),
    }
)
# Of a refused batch.
REQUESTS_AT_ONCE: Final = 4
# Around the numbers: names, counts, the model.
ENVELOPE_MAX_BYTES: Final = 64 * bounds.KIB
# The longest vector that is listened to, to learn how long a model's are.
PROBE_DIMENSIONS_MAX: Final = 16_384
PROBE_TEXT: Final = "dimensions"
# When the process ends.
LET_GO_SECONDS: Final = 1.0

log = structlog.get_logger()
# The connections of every embedder of this process.
_loop: Final = OwnLoop("embeddings")
_in_use: Final[WeakSet[OpenAIEmbedder]] = WeakSet()


class OpenAIEmbedder:
    """Usable from any thread and loop, as often as wanted, also after `aclose`.

    With `ask_dimensions` requests name the identity's dimensions; services that cannot shorten
    their vectors refuse that or ignore it. Of a text longer than `text_max_bytes` only the
    beginning is sent.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        ask_dimensions: bool = False,
        text_max_bytes: int = bounds.EMBEDDED_TEXT_MAX_BYTES,
        batch_items: int = bounds.BATCH_ITEMS,
        timeout_seconds: float = bounds.EMBEDDER_TIMEOUT_SECONDS,
        **connection: Unpack[Connection],
    ) -> None:
        self._identity = identity
        self._ask_dimensions = ask_dimensions
        self._text_max_bytes = text_max_bytes
        self._batch_items = batch_items
        self._timeout_seconds = timeout_seconds
        self._connection = connection
        self._client: JsonClient | None = None
        _in_use.add(self)

    @property
    def identity(self) -> Identity:
        """Which vectors it makes."""
        return self._identity

    @property
    def batch_items(self) -> int:
        """How many texts one call takes at most."""
        return self._batch_items

    async def embed(
        self, texts: Sequence[str], purpose: Purpose
    ) -> Sequence[Vector | ErrorCode]:
        """Return for each text, in order, its vector, or why it alone has none.

        Texts without a word are never sent.

        Raises:
            ProviderFailed: the service gave no vector at all, and not because of the texts.
        """
        outcomes: list[Vector | ErrorCode] = [ErrorCode.TEXT_NOT_EMBEDDABLE] * len(texts)
        beginnings = [cut_utf8(storable(text), self._text_max_bytes) for text in texts]
        inputs = self._identity.inputs(beginnings, purpose)
        if inputs:
            answered = await _loop.run(self._embed(list(inputs.values())))
            for place, outcome in zip(inputs, answered, strict=True):
                outcomes[place] = outcome
        return outcomes

    def learn_dimensions(self) -> int:
        """Return how long the model's vectors are, from one request. Blocks.

        Raises:
            ProviderFailed: it did not say.
        """
        return _loop.wait(self._learn_dimensions())

    async def aclose(self) -> None:
        """Let connections go."""
        await _loop.run(self.close_here())

    # In the loop of its own.

    async def _embed(self, texts: Sequence[str]) -> Sequence[Vector | ErrorCode]:
        batch = _Batch(self, texts)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await batch.run()
        except TimeoutError:
            batch.failed = ProviderFailed(ErrorCode.PROVIDER_TIMEOUT, reason="deadline")
        return batch.outcomes()

    async def _learn_dimensions(self) -> int:
        failure = ProviderFailed(ErrorCode.PROVIDER_TIMEOUT, reason="deadline")
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_seconds):
                try:
                    (vector,) = await self.request([PROBE_TEXT], None)
                    if vector is not None:
                        await self.close_here()
                        return len(vector)
                    failure = ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="numbers")
                except ProviderFailed as failed:
                    failure = failed
        await self.close_here()
        self.report(failure)
        raise failure from None

    async def request(
        self, texts: Sequence[str], dimensions: int | None
    ) -> Sequence[Vector | None]:
        """Send one request for `texts` and return their vectors, None where one is none.

        Raises:
            ProviderFailed: there was no answer, or none that can be used.
        """
        body: dict[str, Any] = {
            "model": self._identity.model,
            "input": texts,
            # a quarter of the bytes, and no number to parse
            "encoding_format": "base64",
        }
        if self._ask_dimensions:
            body["dimensions"] = self._identity.dimensions
        numbers = len(texts) * (dimensions or PROBE_DIMENSIONS_MAX)
        if self._client is None:
            self._client = JsonClient(**self._connection)
        answer = await self._client.post(
            PATH,
            json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(),
            max_bytes=ENVELOPE_MAX_BYTES + numbers * bounds.ANSWER_BYTES_PER_NUMBER,
        )
        return answers.vectors(answer, count=len(texts), dimensions=dimensions)

    def report(self, failure: ProviderFailed) -> None:
        """Log what failed, in our own words."""
        log.warning(
            "provider.failed",
            model=self._identity.model,
            error_code=failure.code.value,
            status=failure.http_status,
            reason=failure.reason,
        )

    async def close_here(self) -> None:
        """Let connections go, in the loop that has them."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _Batch:
    """The texts of one call, and what has become of each."""

    def __init__(self, embedder: OpenAIEmbedder, texts: Sequence[str]) -> None:
        self._embedder = embedder
        self._texts = texts
        self._vectors: dict[int, Vector] = {}
        self._refused: dict[int, ErrorCode] = {}
        # the last one, of one text or of several
        self._refusal: ProviderFailed | None = None
        # What stands in the way of all that has no outcome yet.
        self.failed: ProviderFailed | None = None

    async def run(self) -> None:
        """Ask until every text has its outcome, or the service fails."""
        refused = await self._ask_each([range(len(self._texts))])
        refused = await self._ask_each([half for span in refused for half in _halves(span)])
        if self._refusal and self._refusal.code is BROKEN and not self._vectors:
            self.failed = self._refusal
        await self._ask_each([range(at, at + 1) for span in refused for at in span])

    def outcomes(self) -> Sequence[Vector | ErrorCode]:
        """Return a vector or a code for each text.

        Raises:
            ProviderFailed: there is no vector.
        """
        failure = self.failed or self._refusal
        if failure is None or len(self._vectors) == len(self._texts):
            return [self._vectors[place] for place in range(len(self._texts))]
        self._embedder.report(failure)
        if not self._vectors:
            raise failure from None
        outcomes = {**dict.fromkeys(range(len(self._texts)), failure.code), **self._refused}
        return list((outcomes | self._vectors).values())

    async def _ask_each(self, spans: Sequence[range]) -> list[range]:
        """Ask for each of `spans` by itself and return those of several texts that were
        refused."""
        refused: list[range] = []
        waiting = iter(spans)

        async def ask() -> None:
            for span in waiting:
                if self.failed is not None:
                    return
                if not await self._ask(span) and len(span) > 1:
                    refused.append(span)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(REQUESTS_AT_ONCE, len(spans))):
                group.create_task(ask())
        return sorted(refused, key=lambda span: span.start)

    async def _ask(self, span: range) -> bool:
        """Return whether the service took these texts. A failure of its own ends everything."""
        texts = self._texts[span.start : span.stop]
        try:
            vectors = await self._embedder.request(texts, self._embedder.identity.dimensions)
        except ProviderFailed as failed:
            if (failed.http_status, failed.code) in REFUSED:
                self._refuse(span, failed)
                return False
            self.failed = failed
            return True
        for place, vector in zip(span, vectors, strict=True):
            if vector is None:
                unusable = ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="numbers")
                self._refuse(range(place, place + 1), unusable)
            else:
                self._vectors[place] = vector
        return True

    def _refuse(self, span: range, refusal: ProviderFailed) -> None:
        self._refusal = refusal
        if len(span) == 1:
            # A service that takes other texts is not broken.
            code = refusal.code
            self._refused[span.start] = ErrorCode.PROVIDER_REJECTED if code is BROKEN else code


def _halves(span: range) -> Iterator[range]:
    middle = span.start + (len(span) + 1) // 2
    yield range(span.start, middle)
    yield range(middle, span.stop)


@atexit.register
def _let_go() -> None:
    """Close what nobody closed: aiohttp complains about it otherwise."""

    async def close_all() -> None:
        for embedder in list(_in_use):
            await embedder.close_here()

    with suppress(TimeoutError):
        _loop.end(close_all, LET_GO_SECONDS)
