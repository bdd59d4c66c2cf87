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
from itertools import islice
from typing import Final

import structlog
from channels.layers import get_channel_layer
from django.db import transaction

log = structlog.get_logger(__name__)

GROUP: Final = "live"
# Long enough to gather one flush of the text log, short enough that nobody sees it.
GATHER_SECONDS: Final = 0.02
# While rounds follow each other without a pause: each takes half a millisecond from the threads
# that commit, and half as many still leave a frame most of its 150 ms.
STORM_GATHER_SECONDS: Final = 0.04
# A notification of PostgreSQL holds 8,000 bytes; the layer adds its own names to ours.
ENVELOPE_MAX_BYTES: Final = 7_500
# An id has up to 19 digits, and two bytes between it and the next.
SURELY_FIT_ITEMS: Final = ENVELOPE_MAX_BYTES // 21
# Of one round: unlimited senders slow commits 5x.
ENVELOPES_PER_ROUND: Final = 4
# Past this many conversations further hints are dropped; the slow poll finds what they meant.
PENDING_MAX_ITEMS: Final = 50_000
SEND_TIMEOUT_SECONDS: Final = 5.0
# A channel layer that is down is said once in this time, not fifty times a second.
COMPLAINT_SECONDS: Final = 10.0
EXIT_FLUSH_SECONDS: Final = 1.0
RESTART_SECONDS: Final = 1.0

# Replaced and never changed, so that a commit may go through it without a copy.
_listeners: tuple[Callable[[], None], ...] = ()


def announce(conversation_id: int) -> None:
    """Tell every web process that there is something new to read. Never raises or blocks."""
    _sender.add((conversation_id,))
    for heard in _listeners:
        try:
            heard()
        except Exception as error:  # what was committed stays so
            log.error("events.listener_failed", exc_info=error)


def listen(heard: Callable[[], None]) -> None:
    """Call `heard` after each commit of this process that is announced.

    It must not block or raise. What other processes commit is not heard.
    """
    global _listeners  # noqa: PLW0603 - one process, one set of listeners
    if heard not in _listeners:
        _listeners = (*_listeners, heard)


def stop_listening(heard: Callable[[], None]) -> None:
    """Call it no more."""
    global _listeners  # noqa: PLW0603 - one process, one set of listeners
    _listeners = tuple(other for other in _listeners if other != heard)


def announce_many(conversation_ids: Iterable[int]) -> None:
    """Tell it of many conversations at once, as the text log and the sweep do."""
    _sender.add(conversation_ids)


def announce_on_commit(conversation_id: int) -> None:
    """Tell it once the current transaction has committed; never if it rolls back."""
    connection = transaction.get_connection()
    if connection.in_atomic_block or not connection.autocommit:
        connection.on_commit(partial(announce, conversation_id), robust=True)
    else:
        # Nothing to wait for, as Django finds as well, but later: each statement has committed.
        announce(conversation_id)


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
        # Whether somebody has to rouse the thread, or else it looks by itself.
        self._asleep = True
        self._sending = False
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    def add(self, conversation_ids: Iterable[int]) -> None:
        pending = self._pending
        with self._state:
            for conversation_id in conversation_ids:
                if len(pending) >= PENDING_MAX_ITEMS:
                    self._dropped += 1
                else:
                    pending[conversation_id] = None
            if self._asleep and pending:
                self._rouse()

    def _rouse(self) -> None:
        # refused while the process ends: what is left is for the slow poll
        with contextlib.suppress(RuntimeError):
            if self._thread is None:
                self._start()
            elif self._loop is not None and self._wake is not None:
                self._loop.call_soon_threadsafe(self._wake.set)
            self._asleep = False

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
        with self._state:
            self._loop, self._wake = asyncio.get_running_loop(), wake
            self._task = asyncio.current_task()
        complained_at = -COMPLAINT_SECONDS
        gather_seconds = GATHER_SECONDS
        while True:
            if self._may_sleep():
                # The first hint after a rest leaves at once; those that follow it are gathered.
                await wake.wait()
                wake.clear()
                gather_seconds = GATHER_SECONDS
            began = self._loop.time()
            try:
                await self._send_round()
            except Exception as error:  # this thread's outermost loop
                now = self._loop.time()
                if now - complained_at >= COMPLAINT_SECONDS:
                    complained_at = now
                    log.warning("events.not_sent", exc_info=error, dropped=self._dropped)
            finally:
                with self._state:
                    self._sending = False
                    self._state.notify_all()
            # What is announced meanwhile wakes nobody.
            await asyncio.sleep(max(0.0, began + gather_seconds - self._loop.time()))
            gather_seconds = STORM_GATHER_SECONDS

    def _may_sleep(self) -> bool:
        """Return whether nothing waits; then the next announcement rouses the thread."""
        with self._state:
            self._asleep = not self._pending
            return self._asleep

    async def _send_round(self) -> None:
        groups = self._take()
        layer = get_channel_layer()
        for group in groups:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await layer.group_send(GROUP, {"type": "hint", "c": group})

    def _take(self) -> list[list[int]]:
        """Return the envelopes of one round; what is beyond them waits for the next."""
        with self._state:
            self._sending = True
            if len(self._pending) <= SURELY_FIT_ITEMS:
                groups = [list(self._pending)]
                self._pending.clear()
                return groups
            groups = list(islice(envelopes(self._pending), ENVELOPES_PER_ROUND))
            for group in groups:
                for conversation_id in group:
                    del self._pending[conversation_id]
            return groups


_sender = _Sender()


def _start_afresh() -> None:
    """Forget the parent's thread, its loop and its lock, none of which survive a fork."""
    global _sender  # noqa: PLW0603 - one process, one sender
    _sender = _Sender()


os.register_at_fork(after_in_child=_start_afresh)
atexit.register(stop)
