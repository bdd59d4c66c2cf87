"""What a service answers to `POST /embeddings`, checked before anybody relies on it.

The form decides about the whole answer: how many vectors, which, how long. Numbers decide about
one vector: a text of which the service made nothing, or no numbers, has none, and the others
keep theirs.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from recovery.errors import ErrorCode, ProviderFailed
from semantic.embedders.embedder import Vector
from turns.providers import faults, jsontext
from turns.providers.frames import Frame, parse

_FLOAT32_MAX: Final = float(np.finfo(np.float32).max)
_FLOAT32_BYTES: Final = 4


class _Item(Frame):
    index: int
    # Numbers, or little-endian 32-bit floats in base64, whichever was asked for. Null is no
    # number, and what some services send for NaN.
    embedding: list[float | None] | str


class _Answer(Frame):
    data: list[_Item]


def vectors(
    body: bytes, *, count: int, dimensions: int | None = None
) -> Sequence[Vector | None]:
    """Return the vectors of `count` texts in order, of unit length; None where there is none.

    Without `dimensions` the first vector says how many there are.

    Raises:
        ProviderFailed: the answer is an error, or not what was asked for. Only our own words.
    """
    items = parse(_Answer, _document(body)).data
    if len(items) != count:
        raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="count")
    if {item.index for item in items} != set(range(count)):
        raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="index")
    found: list[Vector | None] = [None] * count
    for item in items:
        numbers = _numbers(item.embedding)
        if dimensions is None:
            dimensions = len(numbers)
        if len(numbers) != dimensions or not dimensions:
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="dimensions")
        found[item.index] = _unit(numbers)
    return found


def _document(body: bytes) -> Any:
    code = None
    try:
        document = jsontext.decode(body.decode())
    except (UnicodeDecodeError, jsontext.MalformedJson):
        # the error holds what was sent: it is not chained
        document, code = None, ErrorCode.PROVIDER_PROTOCOL
    if code is not None:
        raise ProviderFailed(code, reason="json")
    # Some services answer 200 and mean an error.
    if isinstance(document, dict) and document.get("error") and "data" not in document:
        raise ProviderFailed(faults.from_error(document["error"]), reason="error")
    return document


def _numbers(embedding: list[float | None] | str) -> NDArray[np.float64]:
    if not isinstance(embedding, str):
        return np.array(embedding, np.float64)
    try:
        packed = binascii.a2b_base64(embedding, strict_mode=True)
    except ValueError:
        packed = None
    if packed is None or len(packed) % _FLOAT32_BYTES:
        raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="base64")
    return np.frombuffer(packed, "<f4").astype(np.float64)


def _unit(numbers: NDArray[np.float64]) -> Vector | None:
    """Return `numbers` at unit length; services differ in whether they do it.

    None where they are not finite as 32-bit floats, or all zero.
    """
    if not (np.abs(numbers) <= _FLOAT32_MAX).all():
        return None
    length = float(np.sqrt(numbers @ numbers))
    return (numbers / length).astype(np.float32) if length > 0 else None
