"""What a test run stands on: a PostgreSQL and a closed environment, made before the settings.

Loaded as a plugin (`-p tests.environment` in pyproject.toml). The process that was started by
hand makes it; xdist's workers find it in their environment.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Final

from config.embedded.paths import ROOT_STATE
from config.embedded.postgres import VOLATILE, Postgres

RUN: Final = "HOLDFAST_TEST_RUN"
# Your shell's providers and secrets have no business in a test.
OURS: Final = (
    "LLM_", "HOLDFAST_", "REALTIME_", "EMBEDDINGS_", "SECRET_KEY", "DIRECT_DATABASE_URL",
    "RECORDING_KEYS", "ALLOWED_HOSTS", "DEBUG", "CSRF_TRUSTED_ORIGINS",
)  # fmt: skip


def _prepare() -> None:
    for name in list(os.environ):
        if name.startswith(OURS):
            del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    home = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ[RUN] = f"{os.getpid()}_{secrets.token_hex(3)}"
    os.environ["HOLDFAST_HOME"] = str(home)
    os.environ["SECRET_KEY"] = secrets.token_urlsafe(32)
    os.environ["LLM_API"] = "responses"
    os.environ["LLM_BASE_URL"] = "http://127.0.0.1:9/v1"
    os.environ["LLM_MODEL"] = "scripted"
    os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = _start_postgres(home).url("holdfast")


def _start_postgres(home: Path) -> Postgres:
    directory = home / "postgres"
    if os.geteuid() == 0:  # where the server's account can reach it
        _remove_abandoned()
        directory = ROOT_STATE / f"test-{os.getpid()}-{secrets.token_hex(3)}"
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = Postgres(
        directory,
        password=secrets.token_urlsafe(16),
        log=home / "postgres.log",
        # what the planner believes of a table must not depend on when a test met autovacuum
        settings={**VOLATILE, "autovacuum": "off"},
    )
    server.start()
    atexit.register(server.stop)
    server.create_database("holdfast")
    return server


def _remove_abandoned() -> None:
    """Remove the clusters of test runs that were killed."""
    for directory in ROOT_STATE.glob("test-*-*"):
        if not Path("/proc", directory.name.split("-")[1]).exists():
            shutil.rmtree(directory, ignore_errors=True)


if RUN not in os.environ:
    _prepare()
