"""An event loop in a thread of its own, which every thread and every loop of a process shares.

Connections belong to one loop, and an embedder is used from many: of the page, of turns, of the
worker, of a command. Here they are kept by the one loop that outlives them all, and reading a
large answer holds nobody else up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class OwnLoop:
    """Starts with the first work and ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns there. Cancelling the caller cancels the work."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        return await asyncio.wrap_future(future)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns there, from where no loop runs. Blocks."""
        return asyncio.run_coroutine_threadsafe(work, self._running()).result()

    def end(self, work: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
        """Do `work` there, if there ever was any work.

        Raises:
            TimeoutError: it took longer than `seconds`.
        """
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(work(), self._loop).result(seconds)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name=self._name, daemon=True
                ).start()
            return self._loop
