"""A whole embedded installation under test: `manage.py up` as a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.embedded.paths import Home
from config.embedded.stack import cluster
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass
class Installation:
    """One HOLDFAST_HOME and the supervisor that runs it."""

    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    supervisor: subprocess.Popen[str] | None = None
    address: dict[str, Any] = field(default_factory=dict)

    def start(self, *options: str) -> dict[str, Any]:
        """Run `up --json` and return its line, printed when everything answers."""
        self.launch(*options)
        assert self.supervisor is not None
        assert self.supervisor.stdout is not None
        line = self.supervisor.stdout.readline()
        assert line, self.errors()
        self.address = json.loads(line)
        return self.address

    def launch(self, *options: str) -> None:
        """Run `up --json` without waiting for it."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("LLM_", "HOLDFAST_"))
            and name not in {"DATABASE_URL", "SECRET_KEY", "BROKER_URL", "CHANNEL_URL"}
        }
        self.close()
        with (self.home.parent / f"{self.home.name}.stderr").open("a") as errors:
            self.supervisor = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--json", *(options or ("--port", "0"))],
                cwd=REPOSITORY,
                env={**environment, "HOLDFAST_HOME": str(self.home), **self.variables},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def errors(self) -> str:
        """Return what the supervisor said on standard error."""
        return (self.home.parent / f"{self.home.name}.stderr").read_text()

    def get(self, path: str) -> int:
        """Return the status of a page, 0 when nothing answers."""
        try:
            with urllib.request.urlopen(self.address["url"] + path, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def pids(self) -> dict[str, int]:
        """Return the supervisor's children by name, and theirs as `other:…`."""
        assert self.supervisor is not None
        found: dict[str, int] = {}
        for pid in descendants(self.supervisor.pid):
            command = command_line(pid)
            for name, sign in (
                ("web", "uvicorn"),
                ("worker", "celery"),
                ("model", "model_server"),
                ("postgres", "pginstall18/bin/postgres"),
            ):
                # A backend just forked still has the command line of its postmaster.
                if sign in command and name not in found:
                    found[name] = pid
                    break
            else:
                found[f"other:{pid}"] = pid
        return found

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit status."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGINT)
        return self.supervisor.wait(60)

    def close(self) -> None:
        """Close our end of the supervisor's output."""
        if self.supervisor is not None and self.supervisor.stdout is not None:
            self.supervisor.stdout.close()

    def remove(self) -> None:
        """End what still runs and delete the installation's data."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            running = descendants(self.supervisor.pid)
            self.supervisor.kill()
            self.supervisor.wait()
            wait_until(lambda: not alive(running), "the killed installation is gone")
        self.close()
        if self.home.exists():
            shutil.rmtree(cluster(Home(self.home.resolve())), ignore_errors=True)


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def alive(pids: list[int]) -> list[int]:
    """Return which of the processes still exist (a zombie does not run any more)."""
    running = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            running.append(pid)
    return running


def command_line(pid: int) -> str:
    """Return the command of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
