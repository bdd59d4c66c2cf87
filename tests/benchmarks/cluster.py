"""A private PostgreSQL 18 with its default durability, and a database for each benchmark.

Import nothing of Django's here: `serve` runs before the settings exist.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from pathlib import Path

from config.embedded.paths import ROOT_STATE
from config.embedded.postgres import Postgres


def serve() -> Postgres:
    """Return a running server that ends with this process, and its files with it.

    Only one thing differs from a server out of the box: it keeps the times of commits, so that
    "committed" is what the server says and not what a client noticed.
    """
    home = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    directory = home / "postgres"
    if os.geteuid() == 0:  # where the server's account can reach it
        directory = ROOT_STATE / f"test-{os.getpid()}-{secrets.token_hex(3)}"
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = Postgres(
        directory,
        password=secrets.token_urlsafe(16),
        log=home / "postgres.log",
        settings={"track_commit_timestamp": "on"},
    )
    server.start()
    atexit.register(server.stop)
    return server
