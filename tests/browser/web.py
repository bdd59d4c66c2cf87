"""The web process under test, as `up` starts it."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from config.embedded.children import start
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXIT_SECONDS = 30.0


class Web:
    """One uvicorn on a port that stays the same when it is started again."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.environment = environment
        self.log = log
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers."""
        self.process = start(
            (
                sys.executable, "-m", "uvicorn", "config.asgi:application",
                "--host", "127.0.0.1", "--port", str(self.port), "--loop", "uvloop",
                "--ws", "websockets-sansio", "--lifespan", "on", "--no-access-log",
                "--timeout-graceful-shutdown", "3",
            ),
            log=self.log,
            environment=self.environment,
            cwd=ROOT,
        )  # fmt: skip
        wait_until(self._answers, "the web process answers", seconds=60)

    def kill(self) -> None:
        """SIGKILL, and collect the exit status."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(EXIT_SECONDS)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
