"""Fingerprints of text: what was sent or said can be compared without being kept."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

# SHA-256 in hexadecimal
DIGEST_CHARS: Final = 64


def digest(text: str) -> str:
    """Return the SHA-256 of `text` as UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_json(value: Any) -> str:
    """Return the digest of `value` in its one canonical form: sorted keys, no spaces."""
    return digest(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


def arguments_digest(arguments: str) -> str:
    """Return the digest of a call's arguments: of the canonical form where they parse.

    Two spellings of the same JSON are the same arguments; what is no JSON is taken verbatim.
    """
    try:
        return digest_json(json.loads(arguments))
    except (ValueError, RecursionError):
        return digest(arguments)
