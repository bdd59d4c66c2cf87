"""Who works in a job's place: a file with a line for each generation that has come.

The newest counts, and a line more never makes it older: a claim that stood still and comes late
takes nothing away from the one that has come meanwhile. Standard library only: the launcher
of programs looks as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

# Somebody else may have written there.
_DIGITS_MAX: Final = 18


def come(holder: Path, generation: int) -> None:
    """Add the generation."""
    with holder.open("a") as file:
        # whatever somebody else may have written before
        file.write(f"\n{generation}\n")


def newest(holder: Path) -> int | None:
    """Return the newest generation, None where none has come or the place is gone."""
    try:
        lines = holder.read_text(errors="replace").split()
    except OSError:
        return None
    known = (int(line) for line in lines if line.isdecimal() and len(line) <= _DIGITS_MAX)
    return max(known, default=None)
