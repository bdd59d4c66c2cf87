"""What search and its worker know of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from recovery.bounds import storable
from recovery.errors import ErrorCode
from turns.digests import digest_json

# Unit length, finite, of the manifest's dimensions.
Vector = NDArray[np.float32]


class Purpose(StrEnum):
    """What a text is embedded for: some models want to be told."""

    QUERY = "query"
    PASSAGE = "passage"


@dataclass(frozen=True, slots=True)
class Identity:
    """All that decides which vector a text gets: the same identity, the same vectors."""

    provider: str
    model: str
    version: str
    dimensions: int
    query_prefix: str = ""
    passage_prefix: str = ""

    @property
    def digest(self) -> str:
        """Its fingerprint, as manifests carry it."""
        return digest_json(asdict(self))

    def prefix(self, purpose: Purpose) -> str:
        """Return what stands before a text of this purpose."""
        return self.query_prefix if purpose is Purpose.QUERY else self.passage_prefix

    def inputs(self, texts: Sequence[str], purpose: Purpose) -> dict[int, str]:
        """Return what a model is given, by its place in `texts`.

        Texts without a word are left out: services refuse a whole batch for one, and a vector
        of nothing would be like every other.
        """
        prefix = self.prefix(purpose)
        return {
            place: prefix + storable(text)
            for place, text in enumerate(texts)
            if text and not text.isspace()
        }


class Embedder(Protocol):
    """One way to compute vectors, with its bounds and its timeout inside."""

    @property
    def identity(self) -> Identity:
        """Which vectors it makes."""

    @property
    def batch_items(self) -> int:
        """How many texts one call takes at most."""

    async def embed(
        self, texts: Sequence[str], purpose: Purpose
    ) -> Sequence[Vector | ErrorCode]:
        """Return for each text, in order, its vector, or why it alone has none.

        Ends within `bounds.PROVIDER_TIMEOUT_SECONDS` whatever the other side does. Nothing
        that computes for long holds up the event loop.

        Raises:
            ProviderFailed: no text of these got a vector; the code says why.
        """

    async def aclose(self) -> None:
        """Let connections go."""
