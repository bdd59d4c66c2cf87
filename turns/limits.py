"""What a turn is allowed, fixed at its admission: a later change of settings does not reach
it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from turns import bounds


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds a turn runs under, as stored on its row."""

    wall_clock_seconds: int = bounds.TURN_WALL_CLOCK_SECONDS
    provider_steps: int = bounds.PROVIDER_STEPS_PER_TURN
    tool_calls: int = bounds.TOOL_CALLS_PER_TURN
    tool_calls_hard_stop: int = bounds.TOOL_CALLS_HARD_STOP
    text_bytes: int = bounds.ASSISTANT_TEXT_MAX_BYTES

    @classmethod
    def stored(cls, limits: Mapping[str, Any]) -> Self:
        """Return the limits kept on a row; what the row does not name has its default."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: limits[name] for name in names if name in limits})

    def snapshot(self) -> dict[str, int]:
        """Return what admission writes on the row."""
        return asdict(self)
