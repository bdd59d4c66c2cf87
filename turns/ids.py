"""Ids as they travel: strings, because a bigint does not fit JavaScript's numbers."""

from __future__ import annotations

import re
from typing import Final

# No sign, no zero in front, nothing a bigint cannot hold: everything else names nothing.
_ID: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_MAX: Final = 2**63 - 1
MAX_CHARS: Final = 19


def parse_id(text: str) -> int | None:
    """Return the id `text` spells, None when no row can have it."""
    if _ID.fullmatch(text) is None:
        return None
    value = int(text)
    return value if value <= _MAX else None
