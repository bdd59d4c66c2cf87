"""A real Celery worker on a test's database, to be held at named points and killed there."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
from celery import current_app
from kombu import Connection, Queue

from config.embedded.children import start
from config.settings import hint_scope
from recovery.models import Runtime
from tests.support.runtimes import wait_until_unlocked, watch_database
from tests.support.waiting import wait_until
from turns import dispatch as turn_dispatch
from work import dispatch as job_dispatch

ROOT: Final = Path(__file__).resolve().parents[2]
READY_SECONDS: Final = 60.0
EXIT_SECONDS: Final = 60.0
COMMAND: Final = (
    sys.executable, "-m", "celery", "-A", "config", "--quiet", "worker",
    "--pool", "threads", "--concurrency", "4",
    "--without-gossip", "--without-mingle", "--without-heartbeat",
)  # fmt: skip


class Worker:
    """One worker process, its group, its log and its probes."""

    def __init__(
        self, environment: Mapping[str, str], directory: Path, *, stop_at: Sequence[str] = ()
    ) -> None:
        self._directory = directory
        self.log = directory / "worker.log"
        self._probes = directory / "probes"
        self._probes.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **environment,
            "HOLDFAST_PROBE": ",".join(stop_at),
            "HOLDFAST_PROBE_DIR": str(self._probes),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Worker:
        """Return when the worker takes hints."""
        reader, writer = os.pipe()
        try:
            self.process = start(
                COMMAND, log=self.log, environment=self.environment, cwd=ROOT, ready=writer
            )
            os.close(writer)
            writer = -1
            ready, _, _ = select.select([reader], [], [], READY_SECONDS)
            if not ready or not os.read(reader, 1):
                raise AssertionError(f"the worker did not start:\n{self.said()}")
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def runtime(self) -> Runtime:
        """The newest runtime this process has registered."""
        found = Runtime.objects.filter(pid=self.pid).order_by("-started_at").first()
        assert found is not None
        return found

    def said(self) -> str:
        """Return the worker's log."""
        return self.log.read_text() if self.log.exists() else ""

    def hint(self, turn_id: int, *, times: int = 1) -> None:
        """Deliver the hint that a turn waits, as the web process does."""
        self._send(turn_dispatch.TASK, turn_id, times)

    def hint_job(self, job_id: int, *, times: int = 1) -> None:
        """Deliver the hint that a job waits."""
        self._send(job_dispatch.TASK, job_id, times)

    def purge(self) -> None:
        """Lose every hint that waits in the broker."""
        with self._broker() as connection:
            Queue(self._queue)(connection.default_channel).purge()

    def _send(self, task: str, row_id: int, times: int) -> None:
        with self._broker() as connection:
            for _ in range(times):
                current_app.send_task(
                    task,
                    args=[row_id],
                    ignore_result=True,
                    queue=self._queue,
                    connection=connection,
                )

    @property
    def _queue(self) -> str:
        return hint_scope(urlsplit(self.environment["DATABASE_URL"]).path.lstrip("/"))

    def _broker(self) -> Connection:
        if url := self.environment.get("BROKER_URL"):
            return Connection(url)
        folder = Path(self.environment["HOLDFAST_HOME"]) / "broker"
        return Connection("holdfast://", transport_options={"folder": str(folder)})

    def reached(self, name: str) -> bool:
        """Return whether the process stands, or has stood, at the probe."""
        return (self._probes / f"{name}.{self.pid}.reached").exists()

    def wait_until_reached(self, name: str) -> None:
        """Return once the process stands at the probe."""
        try:
            wait_until(lambda: self.reached(name) or not self.running, f"{name} reached")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.said()}") from None
        assert self.running, self.said()

    def release(self, name: str) -> None:
        """Let it go on from the probe."""
        (self._probes / f"{name}.release").touch()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP; return when the process stands still."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """SIGKILL; return when it has ended and the database has noticed, if that is there."""
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self.process.wait(EXIT_SECONDS)
            with contextlib.suppress(psycopg.OperationalError):
                wait_until_unlocked(self.environment["DATABASE_URL"], self.pid)

    def terminate(self) -> float:
        """SIGTERM; return how many seconds the graceful stop took, once it has ended well."""
        began = time.monotonic()
        self.signal(signal.SIGTERM)
        self.wait()
        return time.monotonic() - began

    def wait(self, *, seconds: float = EXIT_SECONDS) -> None:
        """Return once the process has ended by itself, well."""
        assert self.process is not None
        status = self.process.wait(seconds)
        assert status == 0, self.said()


@contextlib.contextmanager
def workers(environment: Mapping[str, str], directory: Path) -> Iterator[WorkerStarter]:
    """Give a starter of workers; every one of them is gone afterwards."""
    starter = WorkerStarter(environment, directory)
    try:
        yield starter
    finally:
        for worker in starter.started:
            worker.kill()


class WorkerStarter:
    """Starts workers that share one environment."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self._environment = environment
        self._directory = directory
        self.started: list[Worker] = []

    def __call__(self, *, stop_at: Sequence[str] = (), **environment: str) -> Worker:
        """Start a worker that is held at each of the named probes."""
        directory = self._directory / f"worker-{len(self.started)}"
        worker = Worker({**self._environment, **environment}, directory, stop_at=stop_at)
        self.started.append(worker)
        worker.start()
        # as if the database had been seen for long: otherwise nobody is buried for one lease
        watch_database()
        return worker
