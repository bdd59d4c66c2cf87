"""An event loop on a thread of its own that serves the owned rows of one kind.

A hint is accepted from any thread and costs nothing; a row is claimed only while there is room.
The loop stamps its tick for the runtime's keeper, looks for cancels and lost claims, and drains
when the process is to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import UUID

import structlog
import uvloop
from django.db import models

from recovery.bounds import LOOP_TICK_SECONDS
from recovery.errors import StaleFence
from recovery.executor import in_thread
from recovery.fences import Fence
from recovery.servers import Named, RowServer

log = structlog.get_logger()

# How long a cancel may go unnoticed; one statement for all rows of the loop.
WATCH_SECONDS: Final = 0.25
# Hints kept for when there is room, for each place. The sweep sends those again that are
# dropped.
WAITING_HINTS_PER_PLACE: Final = 2
# After the drain's deadline: to cut the work short, flush, and write the ends.
INTERRUPT_SECONDS: Final = 5.0
LET_GO_SECONDS: Final = 1.0
START_SECONDS: Final = 30.0

ServerT = TypeVar("ServerT", bound=RowServer[Any])


class ServingLoop(Named, ABC, Generic[ServerT]):
    """The rows of one kind in this process, on a loop and a thread of their own.

    `owner` gives the runtime id to claim under, and raises StaleFence while there is none.
    `beat` is called on the loop every half second; `on_broken` when the loop ended by itself.
    """

    model: ClassVar[type[models.Model]]

    def __init__(
        self,
        *,
        owner: Callable[[], UUID],
        beat: Callable[[], None],
        capacity: int,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._beat = beat
        self._capacity = capacity
        self._on_broken = on_broken
        self._live: dict[int, tuple[ServerT, asyncio.Task[Fence | None]]] = {}
        self._waiting: dict[int, None] = {}
        self._draining = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"{self.word}s", daemon=True)

    # what a kind of row adds

    @abstractmethod
    def server(self, pk: int, owner: UUID) -> ServerT:
        """Return the server of one row, not yet running."""

    @abstractmethod
    async def give_up(self, servers: Sequence[ServerT]) -> Sequence[int]:
        """End or release what their claims still hold; return the rows that were."""

    async def open(self) -> None:
        """Open what all servers share. Called on the loop before anything is claimed."""

    async def aclose(self) -> None:
        """Close what `open` opened."""

    async def let_go(self, fences: Sequence[Fence]) -> None:
        """Write nothing more under these claims: their runtime was buried."""

    def helpers(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return what runs as long as the loop does."""
        return self._tick(), self._watch()

    # called from other threads

    def start(self) -> None:
        """Return when the loop turns.

        Raises:
            RuntimeError: it did not come up; the log says why.
        """
        self._thread.start()
        if not self._ready.wait(START_SECONDS) or not self._thread.is_alive():
            raise RuntimeError(f"the loop of the {self.word}s did not start")

    def submit(self, pk: int) -> None:
        """Take a hint that the row waits to be claimed. It may be repeated, late or wrong."""
        self._call(self.hinted, pk)

    def stop_claiming(self) -> None:
        """Claim nothing more. Safe in a signal handler: it only sets a flag."""
        self._draining = True

    def cancel_all(self, runtime_id: UUID) -> None:
        """Let go of what this runtime claimed and write nothing more for it: it was buried."""
        self._call(self._abandon_all, runtime_id)

    def drain(self, deadline: float) -> None:
        """Finish what can be by `deadline` (monotonic), give up the rest, end the loop."""
        self._draining = True
        if not self._thread.is_alive():
            return
        left = max(0.0, deadline - time.monotonic())
        draining = asyncio.run_coroutine_threadsafe(self._drain(left), self._loop)
        try:
            draining.result(left + 2 * INTERRUPT_SECONDS)
        except TimeoutError:
            # The database is away: the sweep settles what is left as orphans of a stopped
            # runtime.
            draining.cancel()
        self._call(self._stopping.set)
        self._thread.join(INTERRUPT_SECONDS)

    def _call(self, function: Callable[..., object], *args: object) -> None:
        # The loop may have ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    # the loop's thread

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except Exception as error:
            log.error("host.broken", kind=self.word, exc_info=error)
            if self._ready.is_set():
                self._on_broken()
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        await self.open()
        helpers = [asyncio.create_task(helper) for helper in self.helpers()]
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        self._ready.set()
        done, _ = await asyncio.wait([stopping, *helpers], return_when=asyncio.FIRST_COMPLETED)
        left = [task for _, task in self._live.values()]
        for task in [stopping, *helpers, *left]:
            task.cancel()
        await asyncio.gather(stopping, *helpers, *left, return_exceptions=True)
        await self.aclose()
        for helper in done - {stopping}:
            helper.result()  # raises: without its helpers the loop serves nobody

    async def _tick(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(LOOP_TICK_SECONDS)

    @property
    def room(self) -> int:
        """How many rows more may be claimed now."""
        return 0 if self._draining else self._capacity - len(self._live)

    def known(self) -> set[int]:
        """Return the rows that are served here, or wait for room."""
        return {*self._live, *self._waiting}

    def hinted(self, pk: int) -> None:
        """Begin with the row, or keep the hint until there is room."""
        if self._draining or pk in self._live or pk in self._waiting:
            log.info(self.event("hint_ignored"), **self.row(pk))
        elif self.room > 0:
            self._begin(pk)
        elif len(self._waiting) < WAITING_HINTS_PER_PLACE * self._capacity:
            self._waiting[pk] = None
        else:
            log.warning(self.event("hint_dropped"), **self.row(pk), capacity=self._capacity)

    def _begin(self, pk: int) -> None:
        try:
            owner = self._owner()
        except StaleFence:
            # Fenced and not yet registered anew; the sweep sends the hint again.
            log.info(self.event("hint_ignored"), **self.row(pk))
            return
        server = self.server(pk, owner)
        task = asyncio.create_task(server.run(), name=f"server {pk}")
        self._live[pk] = server, task
        task.add_done_callback(lambda done: self._ended(pk, done))

    def _ended(self, pk: int, task: asyncio.Task[Fence | None]) -> None:
        del self._live[pk]
        if not task.cancelled() and (error := task.exception()) is not None:
            # The row is still ours and running; its deadline ends it.
            log.error(self.event("server_broken"), **self.row(pk), exc_info=error)
        while self._waiting and self.room > 0:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            self._begin(waiting)

    async def _watch(self) -> None:
        """Notice cancels, and rows that ended, changed hands or were removed without us."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            claimed = {
                pk: server for pk, (server, _) in self._live.items() if server.fence is not None
            }
            if not claimed:
                continue
            try:
                noteworthy = await in_thread(self._noteworthy, fences_of(claimed.values()))
            except Exception as error:
                # The rows' own fences and deadlines hold without this look.
                log.warning("host.watch_failed", kind=self.word, exc_info=error)
                continue
            for pk, still_runs in noteworthy.items():
                if still_runs:
                    claimed[pk].cancel()
                else:
                    claimed[pk].abandon()

    def _noteworthy(self, fences: Sequence[Fence]) -> dict[int, bool]:
        """Return the rows that somebody asked to stop (true), and those that do not run under
        these claims any more: ended, another's, or gone (false)."""
        running = self.model._default_manager.filter(
            state="running",
            pk__in=[fence.pk for fence in fences],
            claim_token__in=[fence.token for fence in fences],
        )
        # as nearly always: a count alone goes over the wire
        if running.filter(cancel_requested_at=None).count() == len(fences):
            return {}
        stopping = dict(running.values_list("claim_token", "cancel_requested_at"))
        return {
            fence.pk: fence.token in stopping
            for fence in fences
            if stopping.get(fence.token, True) is not None
        }

    def _abandon_all(self, runtime_id: UUID) -> None:
        # A loop that was late may have begun a row under the next runtime before it hears of
        # this; letting go of that one would leave it claimed and unserved.
        buried = [each for each in self._live.values() if each[0].owner == runtime_id]
        for server, _ in buried:
            server.abandon()
        self._letting_go = asyncio.create_task(self._let_go(buried))

    async def _let_go(
        self, buried: Sequence[tuple[ServerT, asyncio.Task[Fence | None]]]
    ) -> None:
        await self.let_go(fences_of(server for server, _ in buried))
        if buried:
            _, stuck = await asyncio.wait([task for _, task in buried], timeout=LET_GO_SECONDS)
            for task in stuck:  # it waits for a database that is away
                task.cancel()

    async def _drain(self, seconds: float) -> None:
        self._waiting.clear()
        serving = list(self._live.values())
        log.info("host.draining", kind=self.word, running=len(serving))
        if not serving:
            return
        self.wind_up([server for server, _ in serving])
        await asyncio.wait([task for _, task in serving], timeout=seconds)
        late = [(server, task) for server, task in serving if not task.done()]
        for server, _ in late:
            server.release()
        if late:
            await asyncio.wait([task for _, task in late], timeout=INTERRUPT_SECONDS)
        # One that could not be cut short in time is given up with what was committed.
        claimed = [server for server, _ in late if server.fence is not None]
        if claimed:
            given_up = await self.give_up(claimed)
            log.info("host.gave_up", kind=self.word, count=len(given_up))

    def wind_up(self, servers: Sequence[ServerT]) -> None:
        """Ask the work to come to a good place: the process is to stop."""


def fences_of(servers: Iterable[RowServer[Any]]) -> list[Fence]:
    """Return the claims of those that have made one."""
    return [server.fence for server in servers if server.fence is not None]


class Desk(Named):
    """Where the tasks of this process hand in hints of one kind, for its host if it has one."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._host: ServingLoop[Any] | None = None

    def serve_with(self, host: ServingLoop[Any] | None) -> None:
        """Make `host` the one that serves this process's hints; None takes it away."""
        self._host = host

    def submit(self, pk: int) -> None:
        """Hand a hint to the host. Without one it is lost, which the sweep repairs."""
        if self._host is None:
            lost = "no host in this process"
            log.warning(self.event("hint_dropped"), **self.row(pk), reason=lost)
        else:
            self._host.submit(pk)
