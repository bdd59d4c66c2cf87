"""One migrated template, cloned for each benchmark, with Django pointed at the clone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import django
import psycopg
from psycopg import sql

from config.embedded.postgres import Postgres

django.setup()

from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402

TEMPLATE = "holdfast"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a benchmark runs: its database, its directory, and what its processes are told."""

    url: str
    directory: Path
    server_pid: int
    environment: dict[str, str]


class Databases:
    """Gives each benchmark a database of its own on the one server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        call_command("migrate", verbosity=0)
        connections.close_all()

    @contextmanager
    def use(self, name: str) -> Iterator[Place]:
        """Point Django at a fresh database; drop it afterwards."""
        identifier = sql.Identifier(f"bench_{name}")
        self._administer(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                identifier, sql.Identifier(TEMPLATE)
            )
        )
        self._point_django_at(f"bench_{name}")
        assert self._server.process is not None
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
            home = Path(directory, "home")
            home.mkdir()
            url = self._server.url(f"bench_{name}")
            environment = {
                "DATABASE_URL": url,
                "HOLDFAST_HOME": str(home),
                "SECRET_KEY": settings.SECRET_KEY,
            }
            yield Place(url, Path(directory), self._server.process.pid, environment)
        connections.close_all()
        self._point_django_at(TEMPLATE)
        self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(identifier))

    @staticmethod
    def _point_django_at(name: str) -> None:
        connections["default"].close()
        settings.DATABASES["default"]["NAME"] = name
        connections["default"].settings_dict["NAME"] = name

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._server.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)
