"""Bounds of jobs that contradict each other are refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.apps.config import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from recovery.bounds import (
    ADMISSION_GRACE_SECONDS,
    ADOPTION_ATTEMPTS,
    DEADLINE_GRACE_SECONDS,
    DISPATCH_BACKOFF_SECONDS,
    DRAIN_SECONDS,
)
from turns import bounds as turns_bounds
from work import bounds
from work.prompts import CONTEXT_HEADING

# What a notice says beside the last words: its own sentences, and the mark of a cut.
NOTICE_MIN_BYTES: Final = 1_024


@register()
def bounds_agree(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Return an error for each pair of bounds that cannot hold together."""
    del app_configs
    return [
        Error(problem, id=f"work.E{number:03}")
        for number, (holds, problem) in enumerate(_relations(), start=1)
        if not holds
    ]


def _relations() -> Iterator[tuple[bool, str]]:
    """Yield, in a fixed order, what must hold and what is wrong when it does not."""
    yield (
        bounds.GOAL_MAX_BYTES + bounds.CONTEXT_MAX_BYTES + len(CONTEXT_HEADING.encode())
        <= bounds.PROMPT_MAX_BYTES
        < turns_bounds.HISTORY_MAX_BYTES,
        "Goal and context must fit into the prompt, and the prompt into what a model is sent.",
    )
    yield (
        NOTICE_MIN_BYTES
        <= bounds.REPORT_MAX_BYTES
        <= turns_bounds.ASSISTANT_TEXT_MAX_BYTES
        <= turns_bounds.MESSAGE_ROW_MAX_BYTES,
        "A notice must fit into a report, and a report into the message that shows it.",
    )
    yield (
        bounds.RESPONSE_TEXT_MAX_BYTES < turns_bounds.HISTORY_MAX_BYTES,
        "What one response said must fit into the next request.",
    )
    # A provider and a tool are given up by their own clocks, whoever owns the job by then; the
    # lease is renewed by a thread of its own and does not end with them (design section 2).
    yield (
        turns_bounds.PROVIDER_CONNECT_SECONDS
        < turns_bounds.PROVIDER_IDLE_SECONDS
        < bounds.WALL_CLOCK_SECONDS
        <= bounds.COMPUTER_WALL_CLOCK_SECONDS,
        "A provider must be found silent before a job's time is over.",
    )
    yield (
        turns_bounds.TOOL_TIMEOUT_SECONDS < bounds.WALL_CLOCK_SECONDS,
        "A tool must time out before its job does.",
    )
    yield (
        0 < bounds.WALL_CLOCK_MIN_SECONDS <= bounds.WALL_CLOCK_SECONDS,
        "The least time a person may give a job must not be more than the most.",
    )
    yield (
        settings.HOLDFAST_LEASE_SECONDS + DEADLINE_GRACE_SECONDS < bounds.WALL_CLOCK_SECONDS,
        "A dead worker must be noticed, and its lease be over, before its job's time is: "
        "lower HOLDFAST_LEASE_SECONDS.",
    )
    yield (
        ADOPTION_ATTEMPTS * settings.HOLDFAST_LEASE_SECONDS < bounds.WALL_CLOCK_SECONDS,
        "A job's time must last for its adoptions, each noticed by the lease alone: "
        "lower HOLDFAST_LEASE_SECONDS.",
    )
    yield (
        ADMISSION_GRACE_SECONDS < bounds.ADOPTION_DEADLINE_SECONDS
        and sum(DISPATCH_BACKOFF_SECONDS)
        < bounds.ADOPTION_DEADLINE_SECONDS
        < bounds.QUEUE_DEADLINE_SECONDS,
        "A released job must be dispatched through the whole back-off before nobody adopts it, "
        "and that must come before a job nobody claimed is given up.",
    )
    yield (
        DRAIN_SECONDS < bounds.ADOPTION_DEADLINE_SECONDS,
        "A worker that stops and starts again must be back before what it released is given "
        "up.",
    )
    yield (
        bounds.TOOL_CALLS_PER_JOB <= bounds.TOOL_CALLS_HARD_STOP,
        "The hard stop of a job's tool calls must not come before their limit.",
    )
    yield (
        bounds.ROOT_MAX_BYTES <= bounds.PATH_MAX_BYTES
        and bounds.ROOTS_PER_COMPUTER * (bounds.ROOT_MAX_BYTES + 8)
        + bounds.CHECKS_MAX_BYTES
        + 4 * bounds.PATH_MAX_BYTES
        < bounds.AUTHORITY_MAX_BYTES,
        "What a computer's row says must fit into the authority of a job.",
    )
    yield (
        bounds.ACTIVE_JOBS_PER_OWNER <= bounds.JOBS_PER_PROCESS,
        "One worker must have room for the jobs of one person.",
    )
