"""The hint that a row waits for a claim. Losing one costs seconds: the sweep sends another.

A broker that hangs must hold up neither a request nor an event loop, so hints leave through a
thread and a bounded queue of their own, one for each kind of work.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Final

import structlog
from celery import current_app

from turns.lifecycles import KIND

log = structlog.get_logger(__name__)

TASK: Final = "turns.tasks.run_turn"
WAITING_HINTS_MAX: Final = 1_024
# A sweep that releases thousands drops most of their hints: that is said once in this time.
COMPLAINT_SECONDS: Final = 10.0


class Dispatcher:
    """Hints to the workers that rows of one kind wait: a message of `task` with the row's id.

    It never raises and never waits for the broker.
    """

    def __init__(self, kind: str, task: str) -> None:
        self._kind = kind
        self._task = task
        self._starting = threading.Lock()
        self._sender: _Sender | None = None
        self._dropped = 0
        self._told_at = -COMPLAINT_SECONDS

    def hint(self, row_id: int) -> None:
        """Send the hint, soon. Past what may wait it is dropped: the sweep sends another."""
        try:
            self._this_process().hints.put_nowait(row_id)
        except (queue.Full, RuntimeError):  # the second: no thread can be started now
            self._tell_of_a_dropped_one()

    def flush(self, timeout_seconds: float) -> bool:
        """Return True once every hint given so far has left; False when that takes longer.

        For commands, which end right after giving hints.
        """
        hints = self._this_process().hints
        with hints.all_tasks_done:
            return hints.all_tasks_done.wait_for(
                lambda: not hints.unfinished_tasks, timeout_seconds
            )

    def _tell_of_a_dropped_one(self) -> None:
        self._dropped += 1
        now = time.monotonic()
        if now - self._told_at >= COMPLAINT_SECONDS:
            log.warning("dispatch.dropped", kind=self._kind, count=self._dropped)
            self._told_at, self._dropped = now, 0

    def _this_process(self) -> _Sender:
        """Return the sender of this process: a fork keeps the object and loses its thread."""
        with self._starting:
            if self._sender is None or self._sender.pid != os.getpid():
                self._sender = _Sender(self._kind, self._task)
            return self._sender


class _Sender:
    """One process's thread that hands hints of one kind to the broker, in order."""

    def __init__(self, kind: str, task: str) -> None:
        self._kind = kind
        self._task = task
        self.pid = os.getpid()
        self.hints: queue.Queue[int] = queue.Queue(WAITING_HINTS_MAX)
        threading.Thread(target=self._run, name=f"{kind}-dispatch", daemon=True).start()

    def _run(self) -> None:
        while True:
            row_id = self.hints.get()
            try:
                # No expiry: it would be judged by the worker's clock, and the claim decides.
                current_app.send_task(self._task, args=[row_id], ignore_result=True)
            except Exception:  # a hint may fail, its thread may not
                log.warning("dispatch.failed", kind=self._kind, row_id=row_id, exc_info=True)
            finally:
                self.hints.task_done()


_turns: Final = Dispatcher(KIND, TASK)

# Hint that a turn waits; and wait until every such hint has left.
dispatch_turn: Final = _turns.hint
flush: Final = _turns.flush
