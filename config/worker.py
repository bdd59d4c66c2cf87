"""A Celery worker as a runtime: it registers, serves turns and jobs on loops of their own,
derives what search compares, sweeps, and drains.

worker_init             runtime registered, loops up, sweep running; then hints are taken
worker_shutting_down    (in the signal handler) nothing more is claimed; the 20 s begin
worker_shutdown         turns finish or are interrupted, jobs come to a checkpoint and are given
                        back, vectors under way are stored, the sweep ends, the runtime last
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import structlog
from celery.concurrency import get_implementation
from celery.concurrency.solo import TaskPool as SoloPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import worker_init, worker_shutdown, worker_shutting_down

from recovery.bounds import DRAIN_SECONDS
from recovery.runtimes import RuntimeKeeper
from recovery.serving import ServingLoop
from recovery.sweep import SweepThread
from semantic import host as semantic_host
from semantic.host import SemanticHost
from turns import dispatch as turn_dispatch
from turns import events
from turns import host as turn_host
from turns.host import TurnHost
from turns.providers import factory
from turns.requests import Requests
from turns.tools import registry
from work import dispatch as job_dispatch
from work import host as job_host
from work.host import JobHost

log = structlog.get_logger()


@dataclass(slots=True)
class Worker:
    """What this process runs beside Celery's own threads."""

    keeper: RuntimeKeeper
    turns: TurnHost
    jobs: JobHost
    semantic: SemanticHost
    sweeper: SweepThread
    drain_until: float | None = None

    def start(self) -> None:
        """Return when the runtime is registered and the loops turn."""
        self.keeper.start()
        self.turns.start()
        self.jobs.start()
        turn_host.serve_with(self.turns)
        job_host.serve_with(self.jobs)
        self.semantic.start()
        semantic_host.serve_with(self.semantic)
        events.listen(semantic_host.wake)
        self.sweeper.start()

    def begin_to_stop(self) -> None:
        """Claim nothing more. Runs in a signal handler, and so only sets flags."""
        if self.drain_until is None:
            self.drain_until = time.monotonic() + DRAIN_SECONDS
        self.turns.stop_claiming()
        self.jobs.stop_claiming()
        self.semantic.stop_claiming()

    def stop(self) -> None:
        """Return when every turn has ended or job is given back, and last of all the runtime
        has ended."""
        self.begin_to_stop()
        draining = [
            threading.Thread(target=self._drain, args=[host], name="drain")
            for host in (self.turns, self.jobs, self.semantic)
        ]
        for thread in draining:
            thread.start()
        for thread in draining:
            thread.join()
        turn_host.serve_with(None)
        job_host.serve_with(None)
        events.stop_listening(semantic_host.wake)
        semantic_host.serve_with(None)
        self.sweeper.stop()
        turn_dispatch.flush(1.0)
        job_dispatch.flush(1.0)
        events.flush()
        self.keeper.stop()

    def _drain(self, host: ServingLoop[Any] | SemanticHost) -> None:
        try:
            host.drain(self.drain_until or time.monotonic())
        except Exception as error:
            # The runtime's end must still become durable; the sweep settles what is left.
            log.error("worker.drain_failed", exc_info=error)


_worker: Worker | None = None


def _require_one_process(pool: str | type[Any]) -> None:
    """Return when tasks run in this very process, where the loop is.

    Raises:
        SystemExit: the pool forks, or patches threads away.
    """
    if not issubclass(get_implementation(pool), ThreadPool | SoloPool):
        raise SystemExit("Holdfast's worker serves its work in one process: use --pool threads")


def _leave() -> None:
    """End this process as a deploy would: a worker that serves nothing must not take hints."""
    os.kill(os.getpid(), signal.SIGTERM)


@worker_init.connect
def _start(sender: Any, **_: object) -> None:
    global _worker  # noqa: PLW0603 - one process, one worker

    _require_one_process(sender.pool_cls)

    def fenced(runtime_id: UUID) -> None:
        turns.cancel_all(runtime_id)
        jobs.cancel_all(runtime_id)

    # The loop of derivatives is none of these: while it hangs, turns and jobs go on.
    keeper = RuntimeKeeper("worker", on_fenced=fenced, loops=(TurnHost.word, JobHost.word))
    turns = TurnHost(
        owner=lambda: keeper.id,
        beat=partial(keeper.beat_loop, TurnHost.word),
        provider=factory.from_settings,
        tools=registry,
        requests=Requests.from_settings(registry.schemas()),
        on_broken=_leave,
    )
    jobs = JobHost(
        owner=lambda: keeper.id,
        beat=partial(keeper.beat_loop, JobHost.word),
        provider=factory.from_settings,
        on_broken=_leave,
    )
    _worker = Worker(keeper, turns, jobs, SemanticHost(), SweepThread())
    try:
        _worker.start()
    except Exception as error:
        # Celery would log this and go on without anything that serves.
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
