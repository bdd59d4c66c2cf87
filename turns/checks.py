"""Bounds that contradict each other are refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.apps.config import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from recovery.bounds import ADMISSION_GRACE_SECONDS, DISPATCH_BACKOFF_SECONDS, DRAIN_SECONDS
from turns import bounds

CONTEXT_MIN_BYTES: Final = 1_024


@register()
def bounds_agree(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Return an error for each pair of bounds that cannot hold together."""
    del app_configs
    return [
        Error(problem, id=f"turns.E{number:03}")
        for number, (holds, problem) in enumerate(_relations(), start=1)
        if not holds
    ]


def _relations() -> Iterator[tuple[bool, str]]:
    """Yield, in a fixed order, what must hold and what is wrong when it does not."""
    yield (
        bounds.CHUNK_MAX_BYTES
        <= bounds.HELD_TEXT_MAX_BYTES
        <= bounds.ASSISTANT_TEXT_MAX_BYTES
        <= bounds.MESSAGE_ROW_MAX_BYTES,
        "A chunk must fit into what is held, that into an answer, and that into a message.",
    )
    yield (
        bounds.USER_MESSAGE_MAX_BYTES < bounds.HISTORY_MAX_BYTES,
        "A question must fit into the history sent for it.",
    )
    yield (
        bounds.TOOL_RESULT_MAX_BYTES < bounds.HISTORY_MAX_BYTES,
        "A tool's result must fit into the history sent for it.",
    )
    yield (
        bounds.SSE_LINE_MAX_BYTES <= bounds.SSE_EVENT_MAX_BYTES <= bounds.RESPONSE_MAX_BYTES,
        "A line of a stream must fit into an event, and an event into a response.",
    )
    yield (
        bounds.TOOL_ARGUMENTS_MAX_BYTES < bounds.SSE_EVENT_MAX_BYTES,
        "The arguments of a call must fit into an event of the stream.",
    )
    yield (
        bounds.PROVIDER_CONNECT_SECONDS
        < bounds.PROVIDER_IDLE_SECONDS
        < bounds.TURN_WALL_CLOCK_SECONDS,
        "A provider must be found silent before the turn's time is over.",
    )
    yield (
        bounds.TOOL_TIMEOUT_SECONDS < bounds.TURN_WALL_CLOCK_SECONDS,
        "A tool must time out before its turn does.",
    )
    yield (
        bounds.TOOL_CALLS_PER_TURN <= bounds.TOOL_CALLS_HARD_STOP,
        "The hard stop of tool calls must not come before their limit.",
    )
    yield (
        bounds.TOOL_CALLS_PER_TURN < bounds.PROVIDER_STEPS_PER_TURN,
        "A turn that calls one tool a step must have a step left for its report.",
    )
    yield (
        DISPATCH_BACKOFF_SECONDS[0] == ADMISSION_GRACE_SECONDS
        and sum(DISPATCH_BACKOFF_SECONDS) < bounds.QUEUE_DEADLINE_SECONDS,
        "A waiting turn must be dispatched through the whole back-off before its deadline.",
    )
    yield (
        DRAIN_SECONDS < bounds.TURN_WALL_CLOCK_SECONDS,
        "A stopping worker must not wait as long as a turn may take.",
    )
    yield (
        bounds.FLUSH_SECONDS < bounds.SLOW_POLL_SECONDS,
        "Text must be committed more often than a silent layer is polled.",
    )
    yield (
        settings.LLM_CONTEXT_BYTES >= CONTEXT_MIN_BYTES,
        f"LLM_CONTEXT_BYTES must be {CONTEXT_MIN_BYTES} or more (default 98304, local 4096).",
    )
    yield (
        0 < len(settings.LLM_MODEL) <= bounds.MODEL_NAME_MAX_CHARS,
        f"LLM_MODEL must name a model, in at most {bounds.MODEL_NAME_MAX_CHARS} characters.",
    )
