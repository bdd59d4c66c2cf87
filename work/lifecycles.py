"""The legal moves of a delegated job (design section 4). Steps move as a turn's do."""

from __future__ import annotations

from typing import Final

from recovery.lifecycles import Lifecycle

# What recovery, the release switch and the commands call this kind of work.
KIND: Final = "work"

_ENDS: Final = frozenset(
    {"completed", "failed", "cancelled", "interrupted", "budget_exhausted"}
)

# A released job is queued again; only a running one completes.
JOB: Final = Lifecycle(
    {
        "queued": (_ENDS - {"completed"}) | {"running"},
        "running": _ENDS | {"queued"},
        **{end: frozenset() for end in _ENDS},
    }
)
