"""The server of one owned row, of whatever kind: it claims the row, serves it, and ends it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar
from uuid import UUID

import structlog

from recovery.errors import StaleFence
from recovery.fences import Fence
from recovery.probes import areach

log = structlog.get_logger()

EndingT = TypeVar("EndingT")


class Named:
    """Says which kind of row its log lines and probes are about."""

    word: str

    def event(self, what: str) -> str:
        """Return the name of an event or a probe."""
        return f"{self.word}.{what}"

    def row(self, pk: int) -> dict[str, int]:
        """Return what names the row in a log line."""
        return {f"{self.word}_id": pk}


class RowServer(Named, ABC, Generic[EndingT]):
    """Serves one row: it claims it, has the work done, and ends it, once.

    claimed -> serving -> ending

    stop(ending)    a cancel: the work is cut short, then this end is written
    release()       the process stops: cut short, and left to the host to end or release
    abandon()       fenced: cut short, and nothing is written any more
    """

    def __init__(self, pk: int, *, owner: UUID) -> None:
        self.pk = pk
        self.owner = owner
        self.fence: Fence | None = None
        self._is_abandoned = False
        self._stop: asyncio.Future[EndingT | None] = asyncio.get_running_loop().create_future()

    def stop(self, ending: EndingT) -> None:
        """Cut the work short and end the row like this. What was asked first counts."""
        if not self._stop.done():
            self._stop.set_result(ending)

    def release(self) -> None:
        """Cut the work short, make durable what arrived, and leave the rest to the host."""
        if not self._stop.done():
            self._stop.set_result(None)

    def abandon(self) -> None:
        """Write nothing more: the row belongs to somebody else, or has ended."""
        self._is_abandoned = True
        if not self._stop.done():
            self._stop.set_exception(StaleFence())

    async def run(self) -> Fence | None:
        """Serve the row to its end; return the fence of one that was released without one."""
        # Retrieved in every case: an exception nobody looks at would be logged by the loop.
        self._stop.add_done_callback(lambda stop: stop.cancelled() or stop.exception())
        row = self.row(self.pk)
        await areach(self.event("admitted"))
        fence = await self.claim()
        if fence is None:
            log.info(self.event("not_claimed"), **row)
            return None
        self.fence = fence
        log.info(self.event("claimed"), **row, generation=fence.generation)
        await areach(self.event("claimed"))
        left: Fence | None = fence
        try:
            try:
                left = await self.serve(fence)
            except Exception as error:
                if self._is_abandoned:
                    raise
                # A claimed row that nobody serves would wait for its deadline. Whether it is
                # another's by now the database says, and refuses this end.
                if not isinstance(error, StaleFence):
                    log.error(self.event("broken"), **row, exc_info=error)
                await self.finish_broken(fence)
                left = None
        except StaleFence:
            log.warning(self.event("fence_lost"), **row, generation=fence.generation)
            return None
        finally:
            await self.close(fence, ended=left is None)
        return left

    async def until_stopped(
        self,
        work: Coroutine[Any, Any, EndingT],
        seconds: float,
        out_of_time: Callable[[], EndingT],
    ) -> EndingT | None:
        """Let the work run until it is done, stopped or out of time; then it runs no more.

        Returns None when it was released.

        Raises:
            StaleFence: it was abandoned, or found its claim lost.
        """
        working = asyncio.create_task(work, name=f"{self.word} {self.pk}")
        try:
            either: set[asyncio.Future[Any]] = {working, self._stop}
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
        if self._stop.done() and (working.cancelled() or self._stop.exception()):
            return self._stop.result()
        return out_of_time() if working.cancelled() else working.result()

    @abstractmethod
    def cancel(self) -> None:
        """End the row as cancelled: somebody asked for it."""

    @abstractmethod
    async def claim(self) -> Fence | None:
        """Claim the row; None when there is nothing to claim."""

    @abstractmethod
    async def serve(self, fence: Fence) -> Fence | None:
        """Have the work done and end the row; return the fence of one that was released."""

    @abstractmethod
    async def finish_broken(self, fence: Fence) -> None:
        """End the row after an error of our own."""

    @abstractmethod
    async def close(self, fence: Fence, *, ended: bool) -> None:
        """Let go of what was kept for the row while it was served, whether it has ended or
        not."""
