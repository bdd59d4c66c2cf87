"""What runs beside the requests of a web process: its runtime, a sweep, the live view's reader.

The web process is a runtime too: the death of the only worker is seen and told by somebody.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import structlog
from django.core.signals import request_finished
from django.db import connections

from recovery.bounds import LOOP_TICK_SECONDS
from recovery.runtimes import RuntimeKeeper
from recovery.sweep import SweepThread
from turns import dispatch, events, live

log = structlog.get_logger(__name__)


class WebRuntime:
    """Registers the process, sweeps, and shows what is committed. It serves without all three.

    A database that is away at start must not keep the page from saying so: the keeper goes on
    trying, and the page answers 503 meanwhile.
    """

    def __init__(self) -> None:
        self._keeper = RuntimeKeeper("web", on_fenced=_own_nothing)
        self._sweeper = SweepThread()
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when the runtime is registered and the reader listens.

        Raises:
            TimeoutError: the database did not take the registration.
        """
        # Each synchronous request has a thread of its own, which ends with it.
        request_finished.connect(_close_connections, dispatch_uid="config.web")
        self._beating = asyncio.create_task(self._beat(), name="runtime.beat")
        await asyncio.to_thread(self._keeper.start)
        self._sweeper.start()
        live.start()

    async def stop(self) -> None:
        """End what runs here, the runtime last."""
        await live.stop()
        await asyncio.to_thread(self._stop_threads)
        if self._beating is not None:
            self._beating.cancel()

    def _stop_threads(self) -> None:
        self._sweeper.stop()
        dispatch.flush(1.0)
        events.flush()
        self._keeper.stop()

    async def _beat(self) -> None:
        while True:
            self._keeper.beat_loop()
            await asyncio.sleep(LOOP_TICK_SECONDS)


def _close_connections(**_: object) -> None:
    connections.close_all()


def _own_nothing(runtime_id: UUID) -> None:
    """A web process owns no rows yet, so there is nothing to let go of when it is buried."""
    log.info("web.fenced", runtime_id=runtime_id)
