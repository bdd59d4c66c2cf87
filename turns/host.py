"""The event loop on which a worker process serves its turns, hundreds at a time.

A hint is accepted from any thread and costs nothing; a turn is claimed only while there is
room. The loop stamps its tick for the runtime's keeper, looks for cancels, and drains when the
process is to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog
import uvloop

from recovery.bounds import LOOP_TICK_SECONDS
from recovery.errors import ErrorCode, StaleFence
from recovery.executor import in_thread
from turns import bounds, events, textlog, transitions
from turns.confirmed import confirmed
from turns.models import Turn
from turns.providers.types import TextProvider
from turns.requests import Requests
from turns.server import TurnServer
from turns.textlog import TextLog
from turns.tools.registry import Registry

log = structlog.get_logger()

# How long a cancel may go unnoticed; one statement for all turns of the process.
WATCH_SECONDS: Final = 0.25
# Hints kept for when there is room. The sweep sends those again that are dropped.
WAITING_HINTS_MAX: Final = 2 * bounds.TURNS_PER_PROCESS
# After the drain's deadline: to cut the work short, flush, and write the ends.
INTERRUPT_SECONDS: Final = 5.0
LET_GO_SECONDS: Final = 1.0
START_SECONDS: Final = 30.0


class TurnHost:
    """The turns of this process, on a loop and a thread of their own.

    `owner` gives the runtime id to claim under, and raises StaleFence while there is none.
    `beat` is called on the loop every half second; `on_broken` when the loop ended by itself.
    """

    def __init__(
        self,
        *,
        owner: Callable[[], UUID],
        beat: Callable[[], None],
        provider: Callable[[], TextProvider],
        tools: Registry,
        requests: Requests,
        capacity: int = bounds.TURNS_PER_PROCESS,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner = owner
        self._beat = beat
        self._make_provider = provider
        self._tools = tools
        self._requests = requests
        self._capacity = capacity
        self._on_broken = on_broken
        self._live: dict[int, tuple[TurnServer, asyncio.Task[Any]]] = {}
        self._waiting: dict[int, None] = {}
        self._draining = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="turns", daemon=True)

    # called from other threads

    def start(self) -> None:
        """Return when the loop turns.

        Raises:
            RuntimeError: it did not come up; the log says why.
        """
        self._thread.start()
        if not self._ready.wait(START_SECONDS) or not self._thread.is_alive():
            raise RuntimeError("the loop of the turns did not start")

    def submit(self, turn_id: int) -> None:
        """Take a hint that the turn waits to be claimed. It may be repeated, late or wrong."""
        self._call(self._hinted, turn_id)

    def stop_claiming(self) -> None:
        """Claim nothing more. Safe in a signal handler: it only sets a flag."""
        self._draining = True

    def cancel_all(self, runtime_id: UUID) -> None:
        """Let go of what this runtime claimed and write nothing more for it: it was buried."""
        self._call(self._abandon_all, runtime_id)

    def drain(self, deadline: float) -> None:
        """Finish what can be by `deadline` (monotonic), interrupt the rest, end the loop."""
        self._draining = True
        if not self._thread.is_alive():
            return
        left = max(0.0, deadline - time.monotonic())
        draining = asyncio.run_coroutine_threadsafe(self._drain(left), self._loop)
        try:
            draining.result(left + 2 * INTERRUPT_SECONDS)
        except TimeoutError:
            # The database is away: the sweep ends what is left as orphans of a stopped runtime.
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
            log.error("host.broken", exc_info=error)
            if self._ready.is_set():
                self._on_broken()
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._provider = self._make_provider()
        self._text = TextLog(textlog.connect, events.announce_many)
        self._text.start()
        helpers = [
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._watch(), name="watch"),
        ]
        stopping = asyncio.create_task(self._stopping.wait(), name="stopping")
        self._ready.set()
        done, _ = await asyncio.wait([stopping, *helpers], return_when=asyncio.FIRST_COMPLETED)
        left = [task for _, task in self._live.values()]
        for task in [stopping, *helpers, *left]:
            task.cancel()
        await asyncio.gather(stopping, *helpers, *left, return_exceptions=True)
        await self._text.stop()
        await self._provider.aclose()
        for helper in done - {stopping}:
            helper.result()  # raises: without its helpers the loop serves nobody

    async def _tick(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(LOOP_TICK_SECONDS)

    def _hinted(self, turn_id: int) -> None:
        if self._draining or turn_id in self._live or turn_id in self._waiting:
            log.info("turn.hint_ignored", turn_id=turn_id)
        elif len(self._live) < self._capacity:
            self._begin(turn_id)
        elif len(self._waiting) < WAITING_HINTS_MAX:
            self._waiting[turn_id] = None
        else:
            log.warning("turn.hint_dropped", turn_id=turn_id, capacity=self._capacity)

    def _begin(self, turn_id: int) -> None:
        try:
            owner = self._owner()
        except StaleFence:
            # Fenced and not yet registered anew; the sweep sends the hint again.
            log.info("turn.hint_ignored", turn_id=turn_id)
            return
        server = TurnServer(
            turn_id,
            owner=owner,
            provider=self._provider,
            text=self._text,
            tools=self._tools,
            requests=self._requests,
        )
        task = asyncio.create_task(server.run(), name=f"server {turn_id}")
        self._live[turn_id] = server, task
        task.add_done_callback(lambda done: self._ended(turn_id, done))

    def _ended(self, turn_id: int, task: asyncio.Task[Any]) -> None:
        del self._live[turn_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            # The row is still ours and running; its deadline ends it.
            log.error("turn.server_broken", turn_id=turn_id, exc_info=error)
        while self._waiting and len(self._live) < self._capacity and not self._draining:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            self._begin(waiting)

    async def _watch(self) -> None:
        """Notice cancels, and turns that ended or changed hands without us."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            claimed = {
                turn_id: server
                for turn_id, (server, _) in self._live.items()
                if server.fence is not None
            }
            if not claimed:
                continue
            try:
                noteworthy = await in_thread(_noteworthy, list(claimed))
            except Exception as error:
                # The turns' own fences and deadlines hold without this look.
                log.warning("host.watch_failed", exc_info=error)
                continue
            for turn_id, state, token in noteworthy:
                server = claimed[turn_id]
                fence = server.fence
                if fence is None or (state, token) != (Turn.State.RUNNING, fence.token):
                    server.abandon()
                else:
                    server.cancel()

    def _abandon_all(self, runtime_id: UUID) -> None:
        # A loop that was late may have begun a turn under the next runtime before it hears of
        # this; letting go of that one would leave it claimed and unserved.
        buried = [each for each in self._live.values() if each[0].owner == runtime_id]
        for server, _ in buried:
            server.abandon()
        self._letting_go = asyncio.create_task(self._let_go(buried))

    async def _let_go(self, buried: Sequence[tuple[TurnServer, asyncio.Task[Any]]]) -> None:
        fences = [server.fence for server, _ in buried if server.fence is not None]
        await self._text.abandon(fences)
        if buried:
            _, stuck = await asyncio.wait([task for _, task in buried], timeout=LET_GO_SECONDS)
            for task in stuck:  # it waits for a database that is away
                task.cancel()

    async def _drain(self, seconds: float) -> None:
        self._waiting.clear()
        serving = list(self._live.values())
        log.info("host.draining", running=len(serving))
        if not serving:
            return
        await asyncio.wait([task for _, task in serving], timeout=seconds)
        late = [(server, task) for server, task in serving if not task.done()]
        for server, _ in late:
            server.release()
        if late:
            await asyncio.wait([task for _, task in late], timeout=INTERRUPT_SECONDS)
        # One whose text could not be written in time ends with what was committed.
        fences = [server.fence for server, _ in late if server.fence is not None]
        if fences:
            interrupt = partial(
                transitions.interrupt_own_turns, fences, ErrorCode.RUNTIME_STOPPED
            )
            ended = await confirmed(interrupt, lambda: None)
            log.info("host.interrupted", count=len(ended))


_host: TurnHost | None = None


def serve_with(host: TurnHost | None) -> None:
    """Make `host` the one that serves this process's hints; None takes it away."""
    global _host  # noqa: PLW0603 - one process, one host
    _host = host


def submit(turn_id: int) -> None:
    """Hand a hint to this process's host. Without one it is lost, which the sweep repairs."""
    if _host is None:
        log.warning("turn.hint_dropped", turn_id=turn_id, reason="no host in this process")
    else:
        _host.submit(turn_id)


def _noteworthy(turn_ids: Sequence[int]) -> list[tuple[int, str, UUID | None]]:
    """Return those of the turns that somebody asked to stop, or that run no more."""
    turns = Turn.objects.filter(pk__in=turn_ids)
    changed = turns.exclude(state=Turn.State.RUNNING) | turns.cancel_requested()
    return list(changed.values_list("pk", "state", "claim_token"))
