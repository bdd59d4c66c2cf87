"""Keeps child processes running: start, watch, restart with back-off, stop in order."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, Self

import structlog

from config.embedded import children
from config.embedded.postgres import Postgres

log = structlog.get_logger(__name__)

FIRST_RESTART_SECONDS: Final = 0.2
MAX_RESTART_SECONDS: Final = 15.0
# A child that lived this long starts again at once, whatever happened before.
STEADY_SECONDS: Final = 20.0
LOG_MAX_BYTES: Final = 10 * 1024 * 1024
LOOK_SECONDS: Final = 0.05


class StartFailed(Exception):
    """A process did not come up; the text says which and where its log is."""


@dataclass(slots=True)
class Child:
    """One process that is kept running.

    `environment` is asked at each start. A child says itself that it is ready
    (`children.tell_ready`), unless `probe` looks from outside.
    """

    name: str
    command: Sequence[str | Path]
    environment: Callable[[], Mapping[str, str]]
    log: Path
    cwd: Path
    stop_seconds: float
    probe: Callable[[], bool] | None = None
    process: subprocess.Popen[bytes] | None = None
    ready: bool = False
    failures: int = 0
    started_at: float = 0.0
    restart_at: float | None = None
    _ready_pipe: int | None = field(default=None)

    def start(self, lifeline: int) -> None:
        """Start the process. Main thread only."""
        _rotate(self.log)
        ours, theirs = os.pipe()
        try:
            self.process = children.start(
                self.command,
                log=self.log,
                environment=self.environment(),
                cwd=self.cwd,
                lifeline=lifeline,
                ready=theirs,
            )
        finally:
            os.close(theirs)
        self._forget_pipe()
        self._ready_pipe = ours
        self.ready = False
        self.started_at = time.monotonic()
        self.restart_at = None

    def look(self) -> bool:
        """Return whether the process has become ready by now."""
        if not self.ready:
            self.ready = self.probe() if self.probe else self._said_ready()
            if self.ready:
                self._forget_pipe()
        return self.ready

    def _said_ready(self) -> bool:
        if self._ready_pipe is None or not select.select([self._ready_pipe], [], [], 0)[0]:
            return False
        return bool(os.read(self._ready_pipe, 1))

    def _forget_pipe(self) -> None:
        if self._ready_pipe is not None:
            os.close(self._ready_pipe)
            self._ready_pipe = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self.process.pid if self.process and self.process.poll() is None else None

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the process drains, then ends."""
        self.restart_at = None
        if self.pid is not None and self.process is not None:
            self.process.terminate()


class Supervisor:
    """Runs PostgreSQL and the other children until a signal asks it to stop.

    Everything happens in the main thread, since a child dies with the thread that started it.
    Whatever ends this process, also SIGKILL, ends the children: PDEATHSIG for PostgreSQL, that
    and a pipe for ours.
    """

    def __init__(self, postgres: Postgres | None) -> None:
        self.postgres = postgres
        self.children: list[Child] = []
        self._stop_requests = 0
        self._starting = True
        self._lifeline, self._lifeline_kept = os.pipe()
        self._wake, self._wake_kept = os.pipe()
        for descriptor in (self._wake, self._wake_kept):
            os.set_blocking(descriptor, False)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_kept, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        self._starting = False
        self.stop()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_requests += 1
        if self._starting:
            # Start-up waits in many places; unwinding ends all of them.
            raise KeyboardInterrupt(number)

    def launch(self, *started: Child) -> None:
        """Start children side by side; `wait_ready` waits for them."""
        for child in started:
            self.children.append(child)
            child.start(self._lifeline)

    def wait_ready(self, seconds: float) -> None:
        """Return when every child does its work.

        Raises:
            StartFailed: one ended or took too long.
        """
        end = time.monotonic() + seconds
        while [child for child in self.children if not child.look()]:
            for child in self.children:
                if child.pid is None:
                    raise StartFailed(f"{child.name} did not start; see {child.log}")
            if time.monotonic() > end:
                slow = next(child for child in self.children if not child.ready)
                raise StartFailed(f"{slow.name} is not ready; see {slow.log}")
            self._sleep(LOOK_SECONDS)
        self._starting = False

    def run(self) -> None:
        """Keep the children running; return when a signal asks to stop."""
        while not self._stop_requests:
            self._keep_postgres()
            for child in self.children:
                self._keep(child)
            self._sleep(self._pause())

    def _keep_postgres(self) -> None:
        server = self.postgres
        if server is None or server.process is None or server.process.poll() is None:
            return
        log.warning("child.ended", child="postgres", exit_status=server.process.returncode)
        server.start()
        log.info("child.started", child="postgres", pid=server.process.pid)

    def _keep(self, child: Child) -> None:
        now = time.monotonic()
        if child.restart_at is not None:
            if now >= child.restart_at:
                child.start(self._lifeline)
                log.info("child.started", child=child.name, pid=child.pid)
            return
        if child.pid is not None:
            child.look()
            return
        status = child.process.returncode if child.process else None
        child.failures = 0 if now - child.started_at > STEADY_SECONDS else child.failures + 1
        delay = min(
            FIRST_RESTART_SECONDS * 2 ** max(child.failures - 1, 0), MAX_RESTART_SECONDS
        )
        child.restart_at = now + delay
        log.warning(
            "child.ended",
            child=child.name,
            exit_status=status,
            retry_in_seconds=round(delay, 1),
        )

    def _pause(self) -> float | None:
        now = time.monotonic()
        waits = [c.restart_at - now for c in self.children if c.restart_at is not None]
        if any(c.pid is not None and not c.ready for c in self.children):
            waits.append(LOOK_SECONDS)
        # SIGCHLD wakes us; the second guards against one that came just before we slept.
        return max(0.0, min([*waits, 1.0]))

    def _sleep(self, seconds: float | None) -> None:
        select.select([self._wake], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def stop(self) -> None:
        """End the children in reverse order of need, PostgreSQL last.

        A second signal meanwhile ends the drain: what still runs is killed, and recovered at
        the next start like after any crash.
        """
        asked = self._stop_requests
        for child in reversed(self.children):
            child.ask_to_stop()
            end = time.monotonic() + child.stop_seconds
            while child.pid is not None:
                if time.monotonic() > end or self._stop_requests > max(asked, 1):
                    os.kill(child.pid, signal.SIGKILL)
                    child.process.wait() if child.process else None
                    break
                self._sleep(LOOK_SECONDS)
        if self.postgres is not None:
            self.postgres.stop()


def _rotate(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_suffix(".previous.log"))
