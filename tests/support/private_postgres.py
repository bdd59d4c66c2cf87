"""A PostgreSQL of a test's own, which may be stopped, restarted and crashed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psycopg
import pytest
from django.db import connections

from config.embedded.paths import ROOT_STATE
from config.embedded.postgres import Postgres
from tests.support.waiting import untimed

ROOT: Final = Path(__file__).resolve().parents[2]
DATABASE: Final = "holdfast"


@contextmanager
def private_postgres(folder: Path) -> Iterator[Postgres]:
    """Run a migrated server whose commits survive its crash."""
    directory = folder / "postgres"
    if os.geteuid() == 0:  # where the server's account can reach it
        directory = ROOT_STATE / f"test-{os.getpid()}-{secrets.token_hex(3)}"
    server = Postgres(
        directory,
        password=secrets.token_hex(8),
        log=folder / "postgres.log",
        settings={"fsync": "off"},
    )
    server.start()
    try:
        with untimed():
            server.create_database(DATABASE)
            subprocess.run(
                [sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"],
                cwd=ROOT,
                env={**os.environ, "DATABASE_URL": server.url(DATABASE)},
                check=True,
            )
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def django_on(server: Postgres) -> Iterator[None]:
    """Let this thread's ORM use the private server instead of the shared one."""
    described = connections["default"].settings_dict
    before = dict(described)
    parts = urlsplit(server.url(DATABASE))
    connections["default"].close()
    described.update(
        NAME=DATABASE, HOST=parts.hostname, PORT=str(parts.port), PASSWORD=parts.password
    )
    described["USER"] = parts.username
    try:
        yield
    finally:
        connections["default"].close()
        described.update(before)


def crash(server: Postgres) -> None:
    """Kill one backend: the server throws everybody out and starts again by itself."""
    with psycopg.connect(server.url(DATABASE)) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            victim.execute("SELECT pg_sleep(30)")


def answers(server: Postgres) -> bool:
    """Return whether the server takes connections."""
    try:
        psycopg.connect(server.url(DATABASE), connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
