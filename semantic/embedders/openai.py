"""A service that speaks `POST {base_url}/embeddings` as OpenAI's does.

One clock counts connecting, writing, waiting and reading of all requests for a batch.

The rule about refusals. One text that is too long makes a service refuse all of its batch
(400, 413, 422), so a refused batch is split once, in two. A half that is refused too is asked
for text by text, and what is refused alone fails alone: at most n + 3 requests for n texts. No
other failure is asked about again, nor anything after it: the texts still open fail with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack

import structlog

from recovery.errors import ErrorCode, ProviderFailed
from semantic import bounds
from semantic.embedders import answers
from semantic.embedders.embedder import Identity, Purpose, Vector
from semantic.embedders.own_loop import OwnLoop
from turns.providers.transport import Connection, JsonClient

PROVIDER: Final = "openai"
PATH: Final = "/embeddings"
# How a service says that it does not want this batch.
REFUSED: Final = frozenset({400, 413, 422})
# Unless it says that no batch will do: the key, the model, the money.
ABOUT_THE_TEXTS: Final = frozenset(
    {ErrorCode.PROVIDER_REJECTED, ErrorCode.PROVIDER_CONTEXT_EXCEEDED}
)
# Of a refused batch.
REQUESTS_AT_ONCE: Final = 4
# Around the numbers: names, counts, the model.
ENVELOPE_MAX_BYTES: Final = 64 * bounds.KIB
# The longest vector that is listened to, to learn how long a model's are.
PROBE_DIMENSIONS_MAX: Final = 16_384
PROBE_TEXT: Final = "dimensions"

log = structlog.get_logger()
# The connections of every embedder of this process.
_loop: Final = OwnLoop("embeddings")


class OpenAIEmbedder:
    """Usable from any thread and loop, as often as wanted, also after `aclose`.

    With `ask_dimensions` requests name the identity's dimensions; services that cannot shorten
    their vectors refuse that or ignore it.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        ask_dimensions: bool = False,
        batch_items: int = bounds.BATCH_ITEMS,
        timeout_seconds: float = bounds.PROVIDER_TIMEOUT_SECONDS,
        **connection: Unpack[Connection],
    ) -> None:
        self._identity = identity
        self._ask_dimensions = ask_dimensions
        self._batch_items = batch_items
        self._timeout_seconds = timeout_seconds
        self._connection = connection
        self._client: JsonClient | None = None

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
        prefix = self._identity.prefix(purpose)
        outcomes: list[Vector | ErrorCode] = [ErrorCode.TEXT_NOT_EMBEDDABLE] * len(texts)
        wanted = [place for place, text in enumerate(texts) if text and not text.isspace()]
        if wanted:
            asked = [prefix + texts[place] for place in wanted]
            for place, outcome in zip(wanted, await _loop.run(self._embed(asked)), strict=True):
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
        await _loop.run(self._close())

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
                        await self._close()
                        return len(vector)
                    failure = ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="numbers")
                except ProviderFailed as failed:
                    failure = failed
        await self._close()
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

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class _Batch:
    """The texts of one call, and what has become of each."""

    def __init__(self, embedder: OpenAIEmbedder, texts: Sequence[str]) -> None:
        self._embedder = embedder
        self._texts = texts
        self._outcomes: list[Vector | ErrorCode | None] = [None] * len(texts)
        # What stands in the way of all that has no outcome yet.
        self.failed: ProviderFailed | None = None

    async def run(self) -> None:
        """Ask until every text has its outcome, or the service fails."""
        refused = await self._ask_each([range(len(self._texts))])
        halves = [half for span in refused for half in _halves(span)]
        refused = await self._ask_each(halves)
        await self._ask_each([range(at, at + 1) for span in refused for at in span])

    def outcomes(self) -> Sequence[Vector | ErrorCode]:
        """Return a vector or a code for each text.

        Raises:
            ProviderFailed: the service failed, and there is no vector.
        """
        if self.failed is not None:
            self._embedder.report(self.failed)
            if all(
                outcome is None or isinstance(outcome, ErrorCode) for outcome in self._outcomes
            ):
                raise self.failed from None
        code = self.failed.code if self.failed else ErrorCode.PROVIDER_PROTOCOL
        return [code if outcome is None else outcome for outcome in self._outcomes]

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
            if failed.http_status not in REFUSED or failed.code not in ABOUT_THE_TEXTS:
                self.failed = failed
                return True
            if len(span) == 1:
                self._embedder.report(failed)
                self._outcomes[span.start] = failed.code
            return False
        for place, vector in zip(span, vectors, strict=True):
            self._outcomes[place] = ErrorCode.PROVIDER_PROTOCOL if vector is None else vector
        return True


def _halves(span: range) -> Iterator[range]:
    middle = span.start + (len(span) + 1) // 2
    yield range(span.start, middle)
    yield range(middle, span.stop)
