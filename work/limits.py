"""What a job is allowed, fixed at its admission. It holds over all generations of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from recovery.errors import ErrorCode, Refused
from turns.limits import Limits
from work import bounds
from work.models import WorkJob

# The longest a job of each kind may take, and what it is given when nothing is said.
MOST_SECONDS: Final[Mapping[str, int]] = {
    WorkJob.Kind.DEEP_WORK: bounds.WALL_CLOCK_SECONDS,
    WorkJob.Kind.CODING: bounds.COMPUTER_WALL_CLOCK_SECONDS,
    WorkJob.Kind.COMPUTER: bounds.COMPUTER_WALL_CLOCK_SECONDS,
}


@dataclass(frozen=True, slots=True)
class JobLimits(Limits):
    """The bounds a job runs under, as stored on its row: its budget.

    `text_bytes` is what one response may say; a turn's is what its whole answer may.
    """

    wall_clock_seconds: int = bounds.WALL_CLOCK_SECONDS
    provider_steps: int = bounds.PROVIDER_STEPS_PER_JOB
    tool_calls: int = bounds.TOOL_CALLS_PER_JOB
    tool_calls_hard_stop: int = bounds.TOOL_CALLS_HARD_STOP
    text_bytes: int = bounds.RESPONSE_TEXT_MAX_BYTES
    prompt_bytes: int = bounds.PROMPT_MAX_BYTES
    report_bytes: int = bounds.REPORT_MAX_BYTES


def wall_clock(kind: WorkJob.Kind, asked_seconds: int | None) -> int:
    """Return how many seconds a job of `kind` is given.

    Raises:
        Refused: `wall_clock_out_of_range`.
    """
    most = MOST_SECONDS[kind]
    if asked_seconds is None:
        return most
    if not bounds.WALL_CLOCK_MIN_SECONDS <= asked_seconds <= most:
        raise Refused(ErrorCode.WALL_CLOCK_OUT_OF_RANGE)
    return asked_seconds
