"""The thread and the event loop on which a worker process derives vectors.

    deriving   a pass each time something was committed here, and each second
    upkeep     the configured manifest, filling, index, activation, reconciling

Turns and jobs do not depend on it: it is no part of what keeps the runtime alive, it breaks
alone, and it begins again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import uvloop

from recovery.executor import in_thread
from semantic import indexes, upkeep
from semantic.models import Manifest
from semantic.transitions import Shortfall
from semantic.worker import Drained, SemanticWorker
from turns.tools.runner import in_own_thread

log = structlog.get_logger()

# What other processes commit is found by looking.
LOOK_SECONDS: Final = 1.0
# A busy process commits many times a second; a pass takes up all that is there.
GATHER_SECONDS: Final = 0.05
# After a pass that broke off. An outage costs the jobs of one batch a pass, no more.
REST_MIN_SECONDS: Final = 1.0
REST_MAX_SECONDS: Final = 30.0
# Upkeep: while a manifest is being built, otherwise, and while it cannot be done.
BUILDING_SECONDS: Final = 1.0
UPKEEP_SECONDS: Final = 15.0
# Who has how many vectors is counted over all of them.
INDEX_LOOK_SECONDS: Final = 600.0
RESTART_MIN_SECONDS: Final = 1.0
RESTART_MAX_SECONDS: Final = 60.0
# Past the drain's deadline, for the loop to let go.
LET_GO_SECONDS: Final = 2.0


class SemanticHost:
    """Derives in the background of a worker process. `start` and `drain` once; all of it is
    safe from any thread."""

    word: Final = "semantic"

    def __init__(self, worker: Callable[[], SemanticWorker] = SemanticWorker) -> None:
        self._make_worker = worker
        self._worker: SemanticWorker | None = None
        self._draining = False
        # which manifest was last said to be kept from answering
        self._withheld: int | None = None
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="semantic", daemon=True)

    def start(self) -> None:
        """Begin. What goes wrong is logged and tried again; it never raises for it."""
        self._thread.start()

    def wake(self) -> None:
        """Look now: something was committed."""
        self._call(self._wake)

    def stop_claiming(self) -> None:
        """Claim nothing more. Safe in a signal handler: it only sets flags."""
        self._draining = True
        if self._worker is not None:
            self._worker.stop_claiming()

    def drain(self, deadline: float) -> None:
        """Finish the batches under way by `deadline` (monotonic), leave others to their lease,
        end the thread."""
        self.stop_claiming()
        self._ended.set()
        if not self._thread.is_alive():
            return
        self._call(self._stop)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("semantic.cut_short")
            self._call(self._cancel)
            self._thread.join(LET_GO_SECONDS)

    def _call(self, function: Callable[[], object]) -> None:
        # There may be no loop yet, or not any more.
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(function)

    def _wake(self) -> None:
        self._woken.set()

    def _stop(self) -> None:
        self._stopping.set()

    def _cancel(self) -> None:
        self._serving.cancel()

    # the thread

    def _main(self) -> None:
        pause = RESTART_MIN_SECONDS
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(self._serve())
            except asyncio.CancelledError:
                return
            except Exception as error:
                log.error("semantic.host_broken", exc_info=error)
            finally:
                self._loop = None
            if time.monotonic() - began > RESTART_MAX_SECONDS:
                pause = RESTART_MIN_SECONDS
            self._ended.wait(pause)
            pause = min(2 * pause, RESTART_MAX_SECONDS)

    async def _serve(self) -> None:
        self._woken, self._stopping = asyncio.Event(), asyncio.Event()
        self._settle = asyncio.Event()
        self._hurry = False
        self._worker = self._make_worker()
        if self._draining:
            self._worker.stop_claiming()
        current = asyncio.current_task()
        assert current is not None  # noqa: S101 - this coroutine is a task
        self._serving = current
        self._loop = asyncio.get_running_loop()
        if self._ended.is_set():  # before there was a loop to tell
            return
        deriving = asyncio.create_task(self._derive(self._worker))
        beginning = asyncio.create_task(self._begin(self._worker))
        others = [
            asyncio.create_task(self._keep_up()),
            asyncio.create_task(self._keep_indexes()),
            asyncio.create_task(self._stopping.wait()),
        ]
        try:
            done, _ = await asyncio.wait(
                [deriving, *others], return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # raises: without any of them this is no host
            await deriving  # it ends with the batches it holds, as nothing more is claimed
        finally:
            tasks = (deriving, beginning, *others)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _derive(self, worker: SemanticWorker) -> None:
        """Pass after pass, until nothing more is to be claimed."""
        rest = 0.0
        while not self._draining:
            await self._until_woken(rest)
            drained = await worker.drain()
            rest = 0.0 if drained.error_code is None else _longer(rest)
            if self._hurry and drained != Drained():
                # what is being built may be complete by now
                self._settle.set()

    async def _until_woken(self, rest: float) -> None:
        """Return when there may be something to derive, and not before `rest` is over."""
        stopping = asyncio.create_task(self._stopping.wait())
        woken = asyncio.create_task(self._woken.wait())
        try:
            if rest:
                await asyncio.wait([stopping], timeout=rest)
            else:
                await asyncio.wait(
                    [stopping, woken],
                    timeout=LOOK_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                await asyncio.wait([stopping], timeout=GATHER_SECONDS)
        finally:
            stopping.cancel()
            woken.cancel()
        self._woken.clear()

    async def _begin(self, worker: SemanticWorker) -> None:
        """Begin the manifest of the configured embedder, unless it is there.

        Once in a process: during a deploy the old and the new version must not take turns.
        """
        rest = 0.0
        while True:
            try:
                manifest = await in_thread(upkeep.begin_configured)
            except Exception as error:
                if not rest:
                    log.warning("semantic.not_begun", exc_info=error)
                rest = _longer(rest)
                await asyncio.sleep(rest)
                continue
            log.info(
                "semantic.configured", generation=manifest.generation, state=manifest.state
            )
            self._woken.set()
            self._settle.set()
            await worker.warm_up(manifest)
            return

    async def _keep_up(self) -> None:
        """Fill and activate what is being built; put right what was missed."""
        rest = 0.0
        while True:
            try:
                hurry = await self._upkeep()
            except Exception as error:
                if not rest:
                    log.warning("semantic.upkeep_failed", exc_info=error)
                rest = _longer(rest)
                await asyncio.sleep(rest)
                continue
            rest = 0.0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUILDING_SECONDS if hurry else UPKEEP_SECONDS):
                    await self._settle.wait()
            self._settle.clear()

    async def _upkeep(self) -> bool:
        """Make one round; return whether the next one should come soon."""
        building = await in_thread(upkeep.building)
        self._hurry = building is not None and not await self._build(building)
        # It looks for what was missed a page each time, round and round; only what was found
        # lacking is a reason to look on at once.
        while await in_thread(upkeep.reconcile):
            self._woken.set()
        self._woken.set()
        return self._hurry

    async def _build(self, manifest: Manifest) -> bool:
        """Bring the manifest nearer to answering; return whether that is all for now."""
        while await in_thread(upkeep.fill, manifest):
            self._woken.set()
        if not (await in_thread(upkeep.lag, manifest)).is_over:
            return False
        shortfall = await in_thread(upkeep.shortfall, manifest)
        if shortfall.is_too_much:
            self._withhold(manifest, shortfall)
            return shortfall.stands
        if await in_thread(upkeep.needs_index, manifest):
            await in_own_thread(partial(indexes.build_index, manifest))
        return await in_thread(upkeep.activate, manifest)

    def _withhold(self, manifest: Manifest, shortfall: Shortfall) -> None:
        """Say once that the manifest is kept from answering, and by what."""
        if shortfall.stands and manifest.pk != self._withheld:
            self._withheld = manifest.pk
            log.warning(
                "semantic.withheld",
                generation=manifest.generation,
                count=shortfall.lost,
                failed=shortfall.let_down,
            )

    async def _keep_indexes(self) -> None:
        """Give the answering manifest its index when it has grown, and drop those left over."""
        while True:
            await asyncio.sleep(INDEX_LOOK_SECONDS)
            try:
                for manifest in await in_thread(upkeep.to_index):
                    await in_own_thread(partial(indexes.build_index, manifest))
                for manifest in await in_thread(indexes.left_over):
                    await in_own_thread(partial(indexes.drop_index, manifest))
            except Exception as error:
                log.warning("semantic.index_failed", exc_info=error)


def _longer(rest: float) -> float:
    return min(max(REST_MIN_SECONDS, 2 * rest), REST_MAX_SECONDS)


_host: SemanticHost | None = None


def serve_with(host: SemanticHost | None) -> None:
    """Make `host` the one that is woken in this process; None takes it away."""
    global _host  # noqa: PLW0603 - one process, one host
    _host = host


def wake() -> None:
    """Wake the host of this process, if it has one. Never raises or blocks."""
    if _host is not None:
        _host.wake()
