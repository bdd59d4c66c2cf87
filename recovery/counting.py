"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, one: str) -> str:
    """Return "1 file", "2 files": a number and what is counted."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
