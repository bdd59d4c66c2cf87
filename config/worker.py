"""A Celery worker as a runtime: registers, serves turns on its own loop, sweeps, and drains.

worker_init             runtime registered, loop up, sweep running; then hints are taken
worker_shutting_down    (in the signal handler) nothing more is claimed; the 20 s begin
worker_shutdown         turns finish or are interrupted, the sweep ends, the runtime last
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog
from celery.concurrency import get_implementation
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import worker_init, worker_shutdown, worker_shutting_down

from recovery.bounds import DRAIN_SECONDS
from recovery.runtimes import RuntimeKeeper
from recovery.sweep import SweepThread
from turns import dispatch, events
from turns import host as turn_host
from turns.host import TurnHost
from turns.providers import factory
from turns.requests import Requests
from turns.tools import registry

log = structlog.get_logger()


@dataclass(slots=True)
class Worker:
    """What this process runs beside Celery's own threads."""

    keeper: RuntimeKeeper
    host: TurnHost
    sweeper: SweepThread
    drain_until: float | None = None

    def start(self) -> None:
        """Return when the runtime is registered and the loop turns."""
        self.keeper.start()
        self.host.start()
        turn_host.serve_with(self.host)
        self.sweeper.start()

    def begin_to_stop(self) -> None:
        """Claim nothing more. Runs in a signal handler, and so only sets flags."""
        if self.drain_until is None:
            self.drain_until = time.monotonic() + DRAIN_SECONDS
        self.host.stop_claiming()

    def stop(self) -> None:
        """Return when every turn has ended and the runtime has, last of all."""
        self.begin_to_stop()
        try:
            self.host.drain(self.drain_until or time.monotonic())
        except Exception as error:
            # The runtime's end must still become durable; the sweep settles what is left.
            log.error("worker.drain_failed", exc_info=error)
        turn_host.serve_with(None)
        self.sweeper.stop()
        dispatch.flush(1.0)
        events.flush()
        self.keeper.stop()


_worker: Worker | None = None


def _require_one_process(pool: str | type[Any]) -> None:
    """Return when tasks run in this very process, where the loop is.

    Raises:
        SystemExit: the pool forks, or patches threads away.
    """
    if not issubclass(get_implementation(pool), ThreadPool | SoloPool):
        raise SystemExit("Holdfast's worker serves turns in one process: use --pool threads")


def _leave() -> None:
    """End this process as a deploy would: a worker that serves nothing must not take hints."""
    os.kill(os.getpid(), signal.SIGTERM)


@worker_init.connect
def _start(sender: Any, **_: object) -> None:
    global _worker  # noqa: PLW0603 - one process, one worker

    _require_one_process(sender.pool_cls)

    def fenced(runtime_id: UUID) -> None:
        host.cancel_all(runtime_id)

    keeper = RuntimeKeeper("worker", on_fenced=fenced)
    host = TurnHost(
        owner=lambda: keeper.id,
        beat=keeper.beat_loop,
        provider=factory.from_settings,
        tools=registry,
        requests=Requests.from_settings(registry.schemas()),
        on_broken=_leave,
    )
    _worker = Worker(keeper, host, SweepThread())
    try:
        _worker.start()
    except Exception as error:
        # Celery would log this and go on without anything that serves a turn.
        log.error("worker.not_started", exc_info=error)
        raise SystemExit(1) from error


@worker_shutting_down.connect
def _begin_to_stop(**_: object) -> None:
    if _worker is not None:
        _worker.begin_to_stop()


@worker_shutdown.connect
def _stop(**_: object) -> None:
    if _worker is not None:
        _worker.stop()
