"""Hints that a conversation has changed, sent after commit to every web process.

A hint is an id and nothing else: whoever gets it reads what is new from PostgreSQL. Losing one
costs at most the slow poll of `turns/live.py`, so sending never blocks, never raises and is
never in a transaction.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import structlog
from channels.layers import get_channel_layer
from django.db import transaction

log = structlog.get_logger(__name__)

GROUP: Final = "live"
# Long enough to gather one flush of the text log, short enough that nobody sees it.
GATHER_SECONDS: Final = 0.02
# A notification of PostgreSQL holds 8,000 bytes; the layer adds its own names to ours.
ENVELOPE_MAX_BYTES: Final = 7_500
# At most 50 rounds a second, each of this many envelopes: unlimited senders slow commits 5x.
ENVELOPES_PER_ROUND: Final = 4
# Past this many conversations further hints are dropped; the slow poll finds what they meant.
PENDING_MAX_ITEMS: Final = 50_000
SEND_TIMEOUT_SECONDS: Final = 5.0
# A channel layer that is down is said once in this time, not fifty times a second.
COMPLAINT_SECONDS: Final = 10.0
EXIT_FLUSH_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 1.0

_listeners: Final[list[Callable[[], None]]] = []


def announce(conversation_id: int) -> None:
    """Tell every web process that there is something new to read. Never raises or blocks."""
    _sender.add((conversation_id,))
    for heard in tuple(_listeners):
        heard()


def listen(heard: Callable[[], None]) -> None:
    """Call `heard` after each commit of this process that is announced.

    It must not block or raise. What other processes commit is not heard.
    """
    if heard not in _listeners:
        _listeners.append(heard)


def stop_listening(heard: Callable[[], None]) -> None:
    """Call it no more."""
    if heard in _listeners:
        _listeners.remove(heard)


def announce_many(conversation_ids: Iterable[int]) -> None:
    """Tell it of many conversations at once, as the text log and the sweep do."""
    _sender.add(conversation_ids)


def announce_on_commit(conversation_id: int) -> None:
    """Tell it once the current transaction has committed; never if it rolls back."""
    transaction.on_commit(partial(announce, conversation_id), robust=True)


def flush(timeout_seconds: float = EXIT_FLUSH_SECONDS) -> bool:
    """Wait until what was announced has left; return whether it has."""
    return _sender.flush(timeout_seconds)


def stop(timeout_seconds: float = EXIT_FLUSH_SECONDS) -> None:
    """Send what waits, then end the thread and its connections in good order.

    What is announced afterwards begins anew.
    """
    global _sender
    ending, _sender = _sender, _Sender()
    ending.stop(timeout_seconds)


def envelopes(conversation_ids: Iterable[int]) -> Iterator[list[int]]:
    """Yield the ids in groups that each fit into one envelope."""
    room = ENVELOPE_MAX_BYTES
    group: list[int] = []
    for conversation_id in conversation_ids:
        size = len(str(conversation_id)) + 2
        if size > room:
            yield group
            group, room = [], ENVELOPE_MAX_BYTES
        group.append(conversation_id)
        room -= size
    if group:
        yield group


class _Sender:
    """Gathers ids from any thread and sends them from a thread and an event loop of its own."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._pending: dict[int, None] = {}
        self._sending = False
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def add(self, conversation_ids: Iterable[int]) -> None:
        with self._state:
            was_idle = not self._pending
            for conversation_id in conversation_ids:
                if len(self._pending) >= PENDING_MAX_ITEMS:
                    self._dropped += 1
                else:
                    self._pending[conversation_id] = None
            # refused while the process ends: what is left is for the slow poll
            with contextlib.suppress(RuntimeError):
                if self._thread is None:
                    self._start()
                elif was_idle and self._loop is not None and self._wake is not None:
                    self._loop.call_soon_threadsafe(self._wake.set)

    def flush(self, timeout_seconds: float) -> bool:
        with self._state:
            return self._state.wait_for(
                lambda: not self._pending and not self._sending, timeout_seconds
            )

    def stop(self, timeout_seconds: float) -> None:
        """Send what waits and end the thread, its loop and its connection in good order."""
        self.flush(timeout_seconds)
        self._ending.set()
        if self._thread is not None and self._loop is not None and self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(timeout_seconds)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="events.sender", daemon=True)
        thread.start()
        self._thread = thread

    def _run(self) -> None:
        complained = False
        while not self._ending.wait(RESTART_SECONDS if complained else 0.0):
            try:
                # An event loop takes descriptors, and the process may be out of them now.
                with asyncio.Runner() as runner:
                    runner.run(self._send_for_ever())
            except asyncio.CancelledError:
                return
            except Exception as error:
                if not complained:
                    log.warning("events.not_sent", exc_info=error, dropped=self._dropped)
                complained = True

    async def _send_for_ever(self) -> None:
        wake = asyncio.Event()
        wake.set()
        with self._state:
            self._loop, self._wake = asyncio.get_running_loop(), wake
            self._task = asyncio.current_task()
        complained_at = -COMPLAINT_SECONDS
        rests_until = 0.0
        while True:
            await wake.wait()
            wake.clear()
            # The first hint after a rest leaves at once; those that follow it are gathered.
            await asyncio.sleep(max(0.0, rests_until - self._loop.time()))
            rests_until = self._loop.time() + GATHER_SECONDS
            try:
                await self._send_round()
            except Exception as error:  # this thread's outermost loop
                now = asyncio.get_running_loop().time()
                if now - complained_at >= COMPLAINT_SECONDS:
                    complained_at = now
                    log.warning("events.not_sent", exc_info=error, dropped=self._dropped)
            finally:
                with self._state:
                    self._sending = False
                    if self._pending:
                        wake.set()
                    self._state.notify_all()

    async def _send_round(self) -> None:
        with self._state:
            self._sending = True
            groups = []
            for group in envelopes(self._pending):
                groups.append(group)
                if len(groups) == ENVELOPES_PER_ROUND:
                    break
            for group in groups:
                for conversation_id in group:
                    del self._pending[conversation_id]
        layer = get_channel_layer()
        for group in groups:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await layer.group_send(GROUP, {"type": "hint", "c": group})


_sender = _Sender()


def _start_afresh() -> None:
    """Forget the parent's thread, its loop and its lock, none of which survive a fork."""
    global _sender  # noqa: PLW0603 - one process, one sender
    _sender = _Sender()


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(stop)
