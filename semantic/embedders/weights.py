"""Weights and tokenizers that lie inside installed packages. The packages are located, never
imported: they bring engines, or clients that download."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recovery.errors import ErrorCode, ProviderFailed


@dataclass(frozen=True)
class Weights:
    """A model inside the package `package`.

    `sha256` is that of both files, one after the other. Other weights would give other
    vectors under the same name, so they are refused.
    """

    package: str
    tensors: str
    tokenizer: str
    sha256: str

    @property
    def installed(self) -> bool:
        """Whether the package is here."""
        return find_spec(self.package) is not None

    @property
    def version(self) -> str:
        """A short name of exactly these weights."""
        return self.sha256[:16]

    @cached_property
    def _root(self) -> Path:
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ProviderFailed(ErrorCode.PROVIDER_UNAVAILABLE, reason="weights_missing")
        return Path(spec.submodule_search_locations[0])

    def load(self) -> tuple[dict[str, NDArray[Any]], Any]:
        """Return the tensors and the tokenizer.

        Raises:
            ProviderFailed: the package is not here, or holds other weights.
        """
        from safetensors.numpy import load  # noqa: PLC0415 - where texts are embedded alone
        from tokenizers import Tokenizer  # noqa: PLC0415

        try:
            tensors = (self._root / self.tensors).read_bytes()
            tokenizer = (self._root / self.tokenizer).read_bytes()
        except OSError:
            raise ProviderFailed(
                ErrorCode.PROVIDER_UNAVAILABLE, reason="weights_missing"
            ) from None
        if hashlib.sha256(tensors + tokenizer).hexdigest() != self.sha256:
            raise ProviderFailed(ErrorCode.PROVIDER_UNAVAILABLE, reason="weights_differ")
        return load(tensors), Tokenizer.from_buffer(tokenizer)


def unit_length(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return `rows`, none of them zero, each divided by its length."""
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    return rows
