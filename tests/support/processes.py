"""Real processes under test: started, spoken to, held, frozen, killed; always collected."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final
from uuid import UUID

import psycopg

from tests.support.runtimes import wait_until_unlocked

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PATIENCE_SECONDS: Final = 60.0


@contextmanager
def interruptible() -> Iterator[None]:
    """Start processes that heed SIGINT, as those that a person starts do.

    What a shell puts into the background ignores it, and so do its children.
    """
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, inherited)


class ChildProcess:
    """A Python module run as a process that prints one JSON object a line.

    Nothing sleeps: `expect` returns when the line is there and fails when it cannot come.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        log: Path,
        python: str = sys.executable,
    ) -> None:
        self.log = log
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=[self._process.stdout], daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def say(self, word: str, **values: Any) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": word, **values}).encode() + b"\n")
        self._process.stdin.flush()

    def expect(self, event: str, *, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Return the next line that reports `event`; other lines before it are passed over."""
        while True:
            try:
                line = self._lines.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"no {event} within {seconds} s\n{self._tail()}") from None
            if line is None:
                raise AssertionError(f"ended before {event}\n{self._tail()}")
            if line["event"] == event:
                return line

    def heard(self, event: str) -> bool:
        """Return whether a line that was not read yet reports `event`."""
        return any(line is not None and line["event"] == event for line in self._lines.queue)

    def kill(self) -> None:
        """SIGKILL the process and collect its exit status."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)

    def freeze(self) -> None:
        """SIGSTOP the process; return when it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Return the exit status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self, stream: IO[bytes]) -> None:
        for raw in stream:
            self._lines.put(json.loads(raw))
        self._lines.put(None)

    def _tail(self) -> str:
        return self.log.read_text()[-4_000:]


class RuntimeProcess(ChildProcess):
    """A process that is a runtime and nothing else (`tests.support.runtime_process`)."""

    def __init__(
        self, *, environment: Mapping[str, str], log: Path, role: str = "worker"
    ) -> None:
        super().__init__(
            "tests.support.runtime_process", role, environment=environment, log=log
        )
        self.id: UUID | None = None
        self._database_url = environment["DATABASE_URL"]

    def kill(self) -> None:
        """SIGKILL; return when it has ended and the database has noticed, if that is there."""
        was_running = self.is_running
        super().kill()
        if was_running:
            with suppress(psycopg.OperationalError):
                wait_until_unlocked(self._database_url, self.pid)

    def wait_until_registered(self) -> UUID:
        """Return the id under which the process is now registered."""
        self.id = UUID(self.expect("registered")["id"])
        return self.id
