"""What embedders with weights on this machine share: one thread that computes, in short pieces.

The event loop waits and does not compute. One thread each, whatever loops ask: two searches
take their turns piece by piece, and a core is left to everything else.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar, Final

import structlog

from recovery.errors import ErrorCode, ProviderFailed
from semantic import bounds
from semantic.embedders.embedder import Identity, Purpose, Vector
from semantic.embedders.weights import Weights

PROVIDER: Final = "local"

log = structlog.get_logger()


class LocalEmbedder(ABC):
    """Reads its weights when the first text comes, in its thread, once in a process."""

    model: ClassVar[str]
    dimensions: ClassVar[int]
    weights: ClassVar[Weights]
    batch_items_max: ClassVar[int]
    # How much text is computed in one go. Others wait that long for the thread.
    piece_chars: ClassVar[int]
    # Part of the identity: count it up when the same weights are used in another way.
    recipe: ClassVar[int] = 1

    def __init__(
        self,
        identity: Identity | None = None,
        *,
        timeout_seconds: float = bounds.EMBEDDER_TIMEOUT_SECONDS,
    ) -> None:
        self._identity = identity or self.default_identity()
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    @classmethod
    def default_identity(cls) -> Identity:
        """Return which vectors these weights make."""
        version = f"{cls.weights.version}.{cls.recipe}"
        return Identity(PROVIDER, cls.model, version, cls.dimensions)

    @classmethod
    def makes(cls, identity: Identity) -> bool:
        """Return whether this process can compute the vectors of `identity`."""
        own = cls.default_identity()
        return cls.weights.installed and own == replace(
            identity, query_prefix=own.query_prefix, passage_prefix=own.passage_prefix
        )

    @property
    def identity(self) -> Identity:
        """Which vectors it makes."""
        return self._identity

    @property
    def batch_items(self) -> int:
        """How many texts one call takes at most."""
        return self.batch_items_max

    async def embed(
        self, texts: Sequence[str], purpose: Purpose
    ) -> Sequence[Vector | ErrorCode]:
        """Return for each text, in order, its vector, or why it alone has none.

        When time runs out, texts that are done keep their vectors.

        Raises:
            ProviderFailed: the weights are not here or not these, or time ran out before the
                first vector.
        """
        inputs = self._identity.inputs(texts, purpose)
        computed: dict[int, Vector | None] = {}
        failure = None
        try:
            async with asyncio.timeout(self._timeout_seconds):
                for piece in self._pieces(inputs):
                    vectors = await asyncio.get_running_loop().run_in_executor(
                        self._executor(), self._compute, [inputs[place] for place in piece]
                    )
                    computed.update(zip(piece, vectors, strict=True))
        except ProviderFailed as failed:
            failure = failed
        except TimeoutError:
            failure = ProviderFailed(ErrorCode.PROVIDER_TIMEOUT, reason="deadline")
        missing: dict[int, Vector | ErrorCode] = {}
        if failure is not None:
            log.warning(
                "provider.failed",
                model=self._identity.model,
                error_code=failure.code.value,
                status=failure.http_status,
                reason=failure.reason,
            )
            if not computed:
                raise failure from None
            missing = dict.fromkeys(inputs.keys() - computed.keys(), failure.code)
        vectors_of = {place: vector for place, vector in computed.items() if vector is not None}
        outcomes = {**missing, **vectors_of}
        nothing = ErrorCode.TEXT_NOT_EMBEDDABLE
        return [outcomes.get(place, nothing) for place in range(len(texts))]

    async def aclose(self) -> None:
        """Let the thread go; the next text starts another."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"embed-{self.model}")
            return self._thread

    def _pieces(self, inputs: Mapping[int, str]) -> Iterator[list[int]]:
        """Yield the places of texts that are computed in one go: short ones together, long
        ones alone."""
        piece: list[int] = []
        chars = 0
        for place, text in sorted(inputs.items(), key=lambda each: len(each[1])):
            if piece and chars + len(text) > self.piece_chars:
                yield piece
                piece, chars = [], 0
            piece.append(place)
            chars += len(text)
        if piece:
            yield piece

    @abstractmethod
    def _compute(self, texts: list[str]) -> Sequence[Vector | None]:
        """Return the vectors of `texts`, None where nothing of a text is known to the model.

        Runs in the thread.

        Raises:
            ProviderFailed: the weights are not here, or not these.
        """
