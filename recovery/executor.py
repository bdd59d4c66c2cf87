"""Running synchronous database work from an event loop.

The stock wrapper runs one call at a time; this one runs eight. Each thread keeps its own
persistent connection, and each call is wrapped so that a connection that broke is replaced,
not kept for ever.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

from django.db import ProgrammingError, close_old_connections, connection

from recovery import connections

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 8

_executor = ThreadPoolExecutor(THREADS, thread_name_prefix="transition")


async def in_thread(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns, run on one of this process's eight database threads.

    Cancelling the waiting task does not stop the call: what it commits stays committed.
    """
    context = contextvars.copy_context()

    def run() -> T:
        close_old_connections()
        try:
            connections.keep_name()
            return context.run(call, *args, **kwargs)
        except ProgrammingError:
            # a function of the database that planned for another type fails in this session
            # for ever, and in no other
            connection.close()
            raise
        finally:
            close_old_connections()

    return await asyncio.get_running_loop().run_in_executor(_executor, run)
