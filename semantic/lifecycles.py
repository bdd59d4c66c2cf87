"""The legal moves of manifests and semantic jobs (design section 6)."""

from __future__ import annotations

from typing import Final

from recovery.lifecycles import Lifecycle

# What logs and commands call this kind of work.
KIND: Final = "semantic"

# A manifest is derived in the background, then answers, then gives way.
MANIFEST: Final = Lifecycle(
    {
        "building": frozenset({"active", "retired"}),
        "active": frozenset({"retired"}),
        "retired": frozenset(),
    }
)
# A running job whose lease expired is claimed again: it runs on, with one more attempt.
_JOB_MOVES: Final = {
    "queued": frozenset({"running", "invalidated"}),
    "running": frozenset({"completed", "failed", "invalidated"}),
    "completed": frozenset[str](),
    "failed": frozenset[str](),
    "invalidated": frozenset[str](),
}
# When a job has ended, and how.
JOB_ENDS: Final = Lifecycle(_JOB_MOVES)
# A vector is gone when its message changes, and then its job says so, ended as it is.
JOB: Final = Lifecycle({**_JOB_MOVES, "completed": frozenset({"invalidated"})})
