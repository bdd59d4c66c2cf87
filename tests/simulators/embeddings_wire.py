"""What a service answers to `POST /v1/embeddings`, and how it goes wrong."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tests.simulators.replies import Reply, error_reply, json_reply

DIMENSIONS: Final = 8


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Return numbers for `text`, the same ones each time, not of unit length."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return [float(number) for number in np.random.default_rng(seed).normal(0, 3, dimensions)]


def unit_vector_of(text: str, dimensions: int = DIMENSIONS) -> np.ndarray:
    """Return what an embedder ought to make of that."""
    numbers = np.array(vector_of(text, dimensions), np.float64)
    return (numbers / np.linalg.norm(numbers)).astype(np.float32)


def packed(numbers: Sequence[float]) -> str:
    """Return `numbers` as 32-bit floats in base64."""
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def item(index: Any, embedding: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": embedding}


def document(*items: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return {"object": "list", "model": "an alias", "data": list(items), "usage": usage}


def answer(*embeddings: Any, **options: Any) -> Reply:
    """Answer with `embeddings` in order."""
    items = [item(index, embedding) for index, embedding in enumerate(embeddings)]
    return json_reply(document(*items), **options)


def computed(body: bytes) -> Reply:
    """Answer what was asked, as long and in the form that was asked for."""
    asked = json.loads(body)
    if "" in asked["input"]:
        return error_reply(400, kind="invalid_request_error", message="an empty text")
    dimensions = asked.get("dimensions", DIMENSIONS)
    vectors = [vector_of(text, dimensions) for text in asked["input"]]
    if asked.get("encoding_format") == "base64":
        return answer(*map(packed, vectors))
    return answer(*vectors)
