"""The hint that a turn waits for a claim. Losing one costs seconds: the sweep sends another.

A broker that hangs must hold up neither a request nor an event loop, so hints leave through a
thread and a bounded queue of their own.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Final

import structlog
from celery import current_app

log = structlog.get_logger(__name__)

TASK: Final = "turns.tasks.run_turn"
WAITING_HINTS_MAX: Final = 1_024


class _Sender:
    """One process's thread that hands hints to the broker, in order."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.hints: queue.Queue[int] = queue.Queue(WAITING_HINTS_MAX)
        threading.Thread(target=self._run, name="turn-dispatch", daemon=True).start()

    def _run(self) -> None:
        while True:
            turn_id = self.hints.get()
            try:
                # No expiry: it would be judged by the worker's clock, and the claim decides.
                current_app.send_task(TASK, args=[turn_id], ignore_result=True)
            except Exception:  # a hint may fail, its thread may not
                log.warning("turn.dispatch_failed", turn_id=turn_id, exc_info=True)
            finally:
                self.hints.task_done()


_starting: Final = threading.Lock()
_sender: _Sender | None = None


def dispatch_turn(turn_id: int) -> None:
    """Hint to the workers that a turn waits. Never raises and never waits for the broker."""
    try:
        _this_process().hints.put_nowait(turn_id)
    except (queue.Full, RuntimeError):  # the second: no thread can be started now
        log.warning("turn.dispatch_dropped", turn_id=turn_id)


def flush(timeout_seconds: float) -> bool:
    """Return True once every hint given so far has left; False when that takes longer.

    For commands, which end right after giving hints.
    """
    hints = _this_process().hints
    with hints.all_tasks_done:
        return hints.all_tasks_done.wait_for(
            lambda: not hints.unfinished_tasks, timeout_seconds
        )


def _this_process() -> _Sender:
    """Return the sender of this process: a fork keeps the object and loses its thread."""
    global _sender  # noqa: PLW0603
    with _starting:
        if _sender is None or _sender.pid != os.getpid():
            _sender = _Sender()
        return _sender
