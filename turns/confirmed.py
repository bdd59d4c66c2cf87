"""Transitions whose outcome is known, even when the connection was lost during the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from django.db import InterfaceError, OperationalError

from recovery.executor import in_thread

log = structlog.get_logger()

T = TypeVar("T")

# The database is away, or gave up on this statement; what was sent may have been committed.
UNKNOWN: Final = (OperationalError, InterfaceError)
PAUSES_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1.0)


async def confirmed(write: Callable[[], T], reread: Callable[[], T | None]) -> T:
    """Return what `write` committed.

    After an unknown end `reread` is asked on a new connection: what it finds was committed, and
    None means that nothing was, so `write` is called again. It goes on until one of them
    answers; the caller bounds how long that may take.

    Raises:
        StaleFence, IllegalTransition, BoundExceeded, Refused: whatever `write` refuses with.
    """
    failures = 0
    while True:
        try:
            if failures:
                found = await in_thread(reread)
                if found is not None:
                    return found
            return await in_thread(write)
        except UNKNOWN as error:
            if not failures:
                log.warning("database.unknown_outcome", exc_info=error)
            await asyncio.sleep(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
            failures += 1


async def read(query: Callable[[], T]) -> T:
    """Return what `query` reads, however long the database is away."""
    return await confirmed(query, lambda: None)
