"""The legal moves of everything a text turn consists of (design section 3)."""

from __future__ import annotations

from typing import Final

from recovery.lifecycles import Lifecycle

# What recovery, the release switch and the commands call this kind of work.
KIND: Final = "turns"

_ENDS: Final = frozenset({"completed", "failed", "cancelled", "interrupted"})
_TOOL_ENDS: Final = frozenset(
    {"succeeded", "failed", "refused", "cancelled", "unavailable", "interrupted"}
)


def _ending(moves: dict[str, frozenset[str]]) -> Lifecycle:
    """Return a lifecycle in which every state that only appears as a target is terminal."""
    targets = frozenset().union(*moves.values())
    return Lifecycle({**moves, **{state: frozenset() for state in targets - moves.keys()}})


# A turn in the queue may end directly; only a running one completes.
TURN: Final = _ending({"queued": (_ENDS - {"completed"}) | {"running"}, "running": _ENDS})
MESSAGE: Final = _ending(
    {"streaming": frozenset({"complete", "failed", "cancelled", "interrupted"})}
)
RECEIPT: Final = _ending({"captured": _ENDS})
PROVIDER_STEP: Final = _ending({"started": _ENDS})
TOOL_STEP: Final = _ending(
    {"requested": (_TOOL_ENDS - {"succeeded"}) | {"running"}, "running": _TOOL_ENDS}
)
