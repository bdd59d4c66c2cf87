"""Bounds of derivatives and search that contradict each other are refused before anything
runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps.config import AppConfig
from django.core.checks import CheckMessage, Error, register

from recovery.bounds import DRAIN_SECONDS
from semantic import bounds
from semantic.worker import PERSIST_SECONDS
from turns import bounds as turns_bounds


@register()
def bounds_agree(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Return an error for each pair of bounds that cannot hold together."""
    del app_configs
    return [
        Error(problem, id=f"semantic.E{number:03}")
        for number, (holds, problem) in enumerate(_relations(), start=1)
        if not holds
    ]


def _relations() -> Iterator[tuple[bool, str]]:
    """Yield, in a fixed order, what must hold and what is wrong when it does not."""
    yield (
        bounds.PROVIDER_TIMEOUT_SECONDS > 0
        and bounds.PROVIDER_TIMEOUT_SECONDS + PERSIST_SECONDS < bounds.LEASE_SECONDS,
        "A provider must be given up, and its answer be written, while the lease lasts.",
    )
    yield (
        bounds.LEASE_SECONDS < bounds.COOL_DOWN_SECONDS,
        "What failed must not be tried again before what was lost is.",
    )
    yield (
        bounds.PROVIDER_TIMEOUT_SECONDS < DRAIN_SECONDS,
        "A worker that stops must have time for the answer of its last request.",
    )
    yield (
        bounds.ATTEMPTS >= 1 and bounds.ROUNDS_AFTER_FAILURE >= 0,
        "A job must be tried at least once.",
    )
    yield (
        1 <= bounds.BATCH_ITEMS <= bounds.BATCH_ITEMS_MAX and bounds.STATIC_BATCH_ITEMS >= 1,
        "A batch must hold something, and no more than any service takes.",
    )
    yield (
        turns_bounds.USER_MESSAGE_MAX_BYTES
        <= bounds.EMBEDDED_TEXT_MAX_BYTES
        <= turns_bounds.MESSAGE_ROW_MAX_BYTES,
        "What a person says must be embedded whole.",
    )
    yield (
        bounds.QUERY_TIMEOUT_SECONDS < bounds.PROVIDER_TIMEOUT_SECONDS,
        "Who searches must not wait as long as what is derived in the background.",
    )
    yield (
        bounds.HITS_MAX <= bounds.CANDIDATES <= bounds.INDEX_SEARCH_WIDTH,
        "As many must be ranked as are shown, and as many be looked at as are ranked.",
    )
