"""What a benchmark found, as a table for the terminal and for docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
HEADER: Final = ("what", "seen", "goal", "")


@dataclass(frozen=True, slots=True)
class Line:
    """One number. `met` is None where there is no goal."""

    what: str
    seen: str
    goal: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row of the table."""
        verdict = {None: "", True: "met", False: "**missed**"}[self.met]
        return self.what, self.seen, self.goal, verdict


def at_most(what: str, value: float, goal: float, unit: str = "", *, digits: int = 2) -> Line:
    """Return the line of a number that should not be larger than `goal`."""
    return Line(
        what, f"{value:.{digits}f}{unit}", f"≤ {goal:g}{unit}", value <= goal + 10**-digits / 2
    )


def at_least(what: str, value: float, goal: float, unit: str = "", *, digits: int = 2) -> Line:
    """Return the line of a number that should not be smaller than `goal`."""
    return Line(
        what, f"{value:.{digits}f}{unit}", f"≥ {goal:g}{unit}", value >= goal - 10**-digits / 2
    )


def exactly(what: str, value: int, goal: int) -> Line:
    """Return the line of a count that can only be right or wrong."""
    return Line(what, f"{value:,}", f"{goal:,}", value == goal)


def table(lines: Iterable[Line]) -> str:
    """Return the lines as a Markdown table."""
    rows = [HEADER, ("---",) * len(HEADER), *(line.cells for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def rewrite(name: str, lines: Sequence[Line]) -> None:
    """Put the lines into the page, between the marks of the benchmark `name`.

    Raises:
        LookupError: the page has no such marks. Nothing is written.
    """
    begin, end = f"<!-- bench {name} -->", f"<!-- end {name} -->"
    page = PAGE.read_text()
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise LookupError(f"{PAGE.name} has no marks for {name}")
    fresh = f"{begin}\n{table(lines)}\n{end}"
    PAGE.write_text(pattern.sub(lambda _: fresh, page))
