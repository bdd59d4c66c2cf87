"""Transitions whose outcome is known, even when the connection was lost during the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, cast

import structlog
from django.db import InterfaceError, InternalError, OperationalError

from recovery.executor import in_thread

log = structlog.get_logger()

T = TypeVar("T")

# The database is away, takes no writes (a standby), or gave up on this statement or on a
# transaction that stood still; what was sent may have been committed.
UNKNOWN: Final = (OperationalError, InterfaceError, InternalError)
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
            if not failures:
                return await in_thread(write)
            found = await in_thread(reread)
            return await _again(write, reread) if found is None else found
        except UNKNOWN as error:
            if not failures:
                log.warning("database.unknown_outcome", exc_info=error)
            await asyncio.sleep(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
            failures += 1


async def _again(write: Callable[[], T], reread: Callable[[], T | None]) -> T:
    """Return what `write` commits, or what the lost attempt did while this one waited for it.

    That attempt may still have been under way when it was asked after, and hold the locks that
    this one waits for. It has ended when this one is refused, so asking once more tells.
    """
    try:
        written = await in_thread(write)
    except UNKNOWN:
        raise
    except Exception:
        found = await in_thread(reread)
        if found is None:
            raise
        return found
    # a claim that finds nothing to claim
    return written if written is not None else cast("T", await in_thread(reread))


async def read(query: Callable[[], T]) -> T:
    """Return what `query` reads, however long the database is away."""
    return await confirmed(query, lambda: None)
