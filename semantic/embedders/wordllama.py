"""WordLlama with numpy alone: the mean of its tokens' vectors. The embedded default.

Fast enough to compute everything anew while one looks on, and blind to the order of words.
Identical to the library (0.4.0) to seven digits; `l2_supercat`, 256 dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from semantic import bounds
from semantic.embedders.embedder import Purpose, Vector
from semantic.embedders.local import LocalEmbedder
from semantic.embedders.weights import Weights, unit_length

TOKENS_MAX: Final = 512
# The longest token has 16 characters. What cannot reach the first tokens is not looked at: a
# tokenizer without words takes its time over long texts.
TEXT_MAX_CHARS: Final = 16 * TOKENS_MAX + 256


class WordLlamaEmbedder(LocalEmbedder):
    """Static vectors of tokens."""

    model: ClassVar[str] = "wordllama"
    dimensions: ClassVar[int] = 256
    weights: ClassVar[Weights] = Weights(
        package="wordllama",
        tensors="weights/l2_supercat_256.safetensors",
        tokenizer="tokenizers/l2_supercat_tokenizer_config.json",
        sha256="4d243a4b2daee65802d68699e288b9347fd45097303dc232205a660a82b5171e",
    )

    batch_items_max: ClassVar[int] = bounds.STATIC_BATCH_ITEMS
    piece_chars: ClassVar[int] = 64_000

    _loaded: tuple[NDArray[np.float32], Any] | None = None

    def looked_up(self, text: str, purpose: Purpose) -> Vector | None:
        """Return the vector of one text at once, in the caller's thread; None where nothing of
        it is known.

        Some 100 microseconds once the weights are here. Before, they are read first.

        Raises:
            ProviderFailed: the weights are not here, or not these.
        """
        inputs = self.identity.inputs([text], purpose)
        if not inputs:
            return None
        table, tokenizer = self._here()
        beginning = inputs[0][:TEXT_MAX_CHARS]
        encoding = tokenizer.encode(beginning, add_special_tokens=False)
        # What `_compute` does for many, in half the time for one.
        vector: Vector = table.take(encoding.ids, axis=0).sum(axis=0)
        squared = float(vector.dot(vector))
        if not squared:
            return None
        vector /= math.sqrt(squared)
        return vector

    def _compute(self, texts: list[str]) -> Sequence[Vector | None]:
        table, tokenizer = self._here()
        beginnings = [text[:TEXT_MAX_CHARS] for text in texts]
        encodings = tokenizer.encode_batch_fast(beginnings, add_special_tokens=False)
        sums = np.zeros((len(texts), self.dimensions), np.float32)
        # Row by row measured faster than one gather for all: what is summed stays in the cache.
        for row, encoding in zip(sums, encodings, strict=True):
            table.take(encoding.ids, axis=0).sum(axis=0, out=row)
        unknown = np.flatnonzero(~sums.any(axis=1))
        sums[unknown] = 1.0
        vectors: list[Vector | None] = list(unit_length(sums))
        for place in unknown:
            vectors[place] = None
        return vectors

    def _here(self) -> tuple[NDArray[np.float32], Any]:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> tuple[NDArray[np.float32], Any]:
        tensors, tokenizer = self.weights.load()
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)
        return tensors["embedding.weight"].astype(np.float32), tokenizer
