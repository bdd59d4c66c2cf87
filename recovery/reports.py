"""What a pass of recovery says about itself, in the shape that people script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from recovery.orphans import Orphan

REPORT_ROWS_MAX: Final = 20_000


@dataclass(slots=True)
class RecoveryReport:
    """The counts of one pass over one kind, its rows (at most 20,000) and who is left over."""

    kind: str
    examined: int = 0
    adopted: int = 0
    interrupted: int = 0
    redispatched: int = 0
    skipped: int = 0
    failed: int = 0
    duration_ms: int = 0
    unsettled: set[int] = field(default_factory=set)
    # of plain values, which the garbage collector need not follow: id, cause, action, code
    _shown: list[tuple[int, str, str, str]] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What was done with each row, up to the bound."""
        return [
            {"id": str(pk), "cause": cause, "action": action, "error_code": error_code}
            for pk, cause, action, error_code in self._shown
        ]

    @property
    def all_settled(self) -> bool:
        """True when no candidate was left as it was."""
        return not (self.skipped or self.failed)

    @property
    def changed_count(self) -> int:
        """How many rows the pass wrote."""
        return self.adopted + self.interrupted + self.redispatched

    @property
    def counted(self) -> str:
        """The counts, in the words that people read."""
        return (
            f"{self.examined} examined, {self.adopted} adopted, "
            f"{self.interrupted} interrupted, {self.redispatched} dispatched again, "
            f"{self.skipped} locked by others, {self.failed} failed"
        )

    def note(self, orphan: Orphan, action: str, error_code: str = "") -> None:
        """Count one row and list it. `action` is the name of a count."""
        setattr(self, action, getattr(self, action) + 1)
        if action in {"skipped", "failed"}:
            self.unsettled.add(orphan.pk)
        self.show(orphan, action, error_code)

    def show(self, orphan: Orphan, action: str, error_code: str = "") -> None:
        """List one row without counting it."""
        if len(self._shown) < REPORT_ROWS_MAX:
            self._shown.append((orphan.pk, orphan.cause.value, action, error_code))

    def counts(self) -> dict[str, Any]:
        """Return the report without its rows."""
        return {
            "kind": self.kind,
            "examined": self.examined,
            "adopted": self.adopted,
            "interrupted": self.interrupted,
            "redispatched": self.redispatched,
            "skipped": self.skipped,
            "failed": self.failed,
            "duration_ms": self.duration_ms,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON shape of the commands."""
        return {**self.counts(), "rows": self.rows}
