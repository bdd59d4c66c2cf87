"""Keeping this process alive in the eyes of the database, and stopping it when it is not.

A `RuntimeKeeper` has a thread and a database session of its own. The session holds an
advisory lock under a key drawn fresh for it, so the death of the process shows at once; the
lease, renewed each second on the database's clock, covers what the lock does not (a lost
host, a frozen process).

    registering -> living -> stopped
                     | ^
         refused     v |  registers anew
                    fenced

A renewal asks only whether the runtime was buried, not whether its lease is still good: after
an outage everybody's lease is over, and nobody is dead. A refused renewal means buried: the
process lets go of all it runs (`on_fenced`), and registers anew under another id.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import structlog
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import ReadOnlySqlTransaction

from recovery import bounds, hosts
from recovery.connections import application_name, name_sessions, session_parameters
from recovery.errors import StaleFence
from recovery.models import ROLE_MAX_CHARS, Runtime
from recovery.redaction import describe

log = structlog.get_logger(__name__)

# The event loop of a process that has one.
MAIN_LOOP: Final = "main"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 5.0
CONNECT_SECONDS: Final = 5
RECONNECT_MIN_SECONDS: Final = 0.05
# Well below the grace: whoever is back first may look at once.
RECONNECT_MAX_SECONDS: Final = bounds.LOCK_GRACE_SECONDS / 4
# While the database is away a line each try says nothing new.
LOG_EVERY_FAILURES: Final = 100
# While the loop's tick is too old, look often: the lease may have little left when it ticks
# again.
STALE_LOOP_POLL_SECONDS: Final = 0.1

TIMEOUTS: Final = (
    "-c statement_timeout=5s -c lock_timeout=5s "
    "-c idle_in_transaction_session_timeout=5s -c idle_session_timeout=0"
)

_DRAW_KEY: Final = "SELECT nextval('recovery_runtime_lock_key')"
# Other software in this database may hold the key by chance: then draw again, never wait for
# it.
_TRY_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_REGISTER: Final = """
    INSERT INTO recovery_runtime (id, role, host_id, host, pid, boot_id, lock_key,
        lock_backend_pid, started_at, renewed_at, lease_expires_at, stop_reason)
    SELECT %(id)s, %(role)s, %(host_id)s, %(host)s, %(pid)s, %(boot_id)s, %(lock_key)s,
        %(backend)s, n, n, n + make_interval(secs => %(lease)s), '' FROM clock_timestamp() AS n
    ON CONFLICT (id) DO NOTHING
"""
_RENEW: Final = """
    UPDATE recovery_runtime SET renewed_at = clock_timestamp(),
        lease_expires_at = clock_timestamp() + make_interval(secs => %(lease)s),
        lock_key = %(lock_key)s, lock_backend_pid = %(backend)s, lock_missing_since = NULL
    WHERE id = %(id)s AND stopped_at IS NULL
"""
_STOP: Final = """
    UPDATE recovery_runtime SET stopped_at = clock_timestamp(), stop_reason = %(reason)s
    WHERE id = %(id)s AND stopped_at IS NULL
"""

_current: RuntimeKeeper | None = None


def current_runtime_id() -> UUID | None:
    """Return the id under which this process may claim now; None while it has none."""
    return _current.runtime_id if _current else None


class RuntimeKeeper:
    """Registers this process as a runtime and keeps the registration alive until `stop`.

    `on_fenced(old_id)` is called in the keeper's thread when this runtime turns out to be
    buried. It must make the process let go of everything it runs and return soon; nothing
    that the old id claimed can be written any more.

    `loops` names the event loops of the process that must turn for it to be alive; each stamps
    a tick of its own.
    """

    def __init__(
        self,
        role: str,
        *,
        on_fenced: Callable[[UUID], None],
        loops: Collection[str] = (MAIN_LOOP,),
    ) -> None:
        if not (role.isalpha() and role.islower() and len(role) <= ROLE_MAX_CHARS):
            raise ValueError("a role is a short lower-case word")
        self._role = role
        self._on_fenced = on_fenced
        self._ticked_at = dict.fromkeys(loops, time.monotonic())
        self._runtime_id: UUID | None = None
        self._registered = threading.Event()
        self._stopping = threading.Event()
        self._session: psycopg.Connection[Any] | None = None
        self._lock_key: int | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._keep, name="runtime-keeper", daemon=True)

    @property
    def runtime_id(self) -> UUID | None:
        """The id under which this process may claim now; None while it has none."""
        return self._runtime_id

    @property
    def id(self) -> UUID:
        """The id under which this process may claim now.

        Raises:
            StaleFence: it has none: it is fenced and has not registered anew, or has stopped.
        """
        if self._runtime_id is None:
            raise StaleFence
        return self._runtime_id

    def start(self, *, timeout_seconds: float = START_SECONDS) -> None:
        """Return when the runtime's row is committed.

        Raises:
            TimeoutError: the database did not take it in time. Nothing keeps trying.
        """
        global _current  # noqa: PLW0603 - one process, one runtime
        for loop in self._ticked_at:
            self.beat_loop(loop)
        _current = self
        self._thread.start()
        if not self._registered.wait(timeout_seconds):
            self.stop()
            raise TimeoutError("no runtime could be registered")

    def beat_loop(self, loop: str = MAIN_LOOP) -> None:
        """Say that an event loop turns. Call it every half second from the loop itself."""
        self._ticked_at[loop] = time.monotonic()

    def stop(self) -> None:
        """End the runtime; return when its end is committed or the database stays away for 5 s.

        Call it last: whatever the runtime still owns is orphaned from here on. Again does
        nothing.
        """
        global _current  # noqa: PLW0603
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.write(self._wake_writer, b"x")
        self._thread.join(STOP_SECONDS + CONNECT_SECONDS)
        if not self._thread.is_alive():
            # Here and not in the thread, which may end before the byte above is written.
            os.close(self._wake_reader)
            os.close(self._wake_writer)
        if _current is self:
            _current = None

    # --- the keeper's thread ------------------------------------------------------------------

    def _keep(self) -> None:
        runtime_id = uuid4()
        pause, failures = RECONNECT_MIN_SECONDS, 0
        while not self._stopping.is_set():
            try:
                runtime_id = self._step(runtime_id)
                pause, failures = RECONNECT_MIN_SECONDS, 0
                self._await_next()
            except Exception as error:  # noqa: BLE001 - without its keeper the process is dead
                if failures % LOG_EVERY_FAILURES == 0:
                    log.warning("runtime.session_failed", reason=describe(error))
                failures += 1
                if self._runtime_id is None:
                    # Whether the row was committed is unknown; without a lock it is buried
                    # soon.
                    runtime_id = uuid4()
                    self._close()
                # A server that takes no writes any more is left too: the next one may.
                if self._is_lost() or isinstance(error, ReadOnlySqlTransaction):
                    self._close()
                self._stopping.wait(random.uniform(0.5, 1.0) * pause)  # noqa: S311 - spread
                pause = min(2 * pause, RECONNECT_MAX_SECONDS)
        self._end(runtime_id)

    def _step(self, runtime_id: UUID) -> UUID:
        """Register or renew; return the id that holds afterwards."""
        if (
            self._runtime_id is not None
            and self._session is not None
            and not self._loops_turn()
        ):
            return runtime_id
        if self._session is None:
            self._open(runtime_id)
        if self._runtime_id is not None and not self._renew(runtime_id):
            runtime_id = self._fence(runtime_id)
            self._open(runtime_id)
        if self._runtime_id is None:
            self._register(runtime_id)
        return runtime_id

    def _open(self, runtime_id: UUID) -> None:
        """Open a session of our own and take a lock under a key nobody else has."""
        name = application_name(self._role, runtime_id)
        self._session = psycopg.connect(**_session_parameters(name))
        self._lock_key = None
        try:
            while settings.HOLDFAST_LIVENESS == "lock" and self._lock_key is None:
                (key,) = self._value(_DRAW_KEY)
                if self._value(_TRY_LOCK, [key]) == (True,):
                    self._lock_key = key
        except psycopg.Error:
            # A renewal through this connection would be one without a lock.
            self._close()
            raise

    def _register(self, runtime_id: UUID) -> None:
        self._execute(_REGISTER, self._facts(runtime_id))
        name_sessions(application_name(self._role, runtime_id))
        self._runtime_id = runtime_id
        self._registered.set()
        log.info("runtime.registered", runtime_id=runtime_id, role=self._role)

    def _renew(self, runtime_id: UUID) -> bool:
        """Renew the lease; return False when the runtime has been buried."""
        return self._execute(_RENEW, self._facts(runtime_id)) == 1

    def _fence(self, runtime_id: UUID) -> UUID:
        """Let go of everything the buried runtime ran; return the id to register next."""
        self._runtime_id = None
        log.warning("runtime.fenced", runtime_id=runtime_id, role=self._role)
        try:
            self._on_fenced(runtime_id)
        except Exception as error:
            log.error("runtime.fencing_failed", reason=describe(error), exc_info=error)
        # The session carries the old name, and a burial may end it at any moment.
        self._close()
        return uuid4()

    def _end(self, runtime_id: UUID) -> None:
        """Make the end durable, the last thing done here. The lock goes with the session."""
        ending, self._runtime_id = self._runtime_id, None
        deadline = time.monotonic() + STOP_SECONDS
        while ending is not None and time.monotonic() < deadline:
            try:
                if self._session is None:
                    self._open(runtime_id)
                reason = Runtime.StopReason.RUNTIME_STOPPED.value
                self._execute(_STOP, {"id": runtime_id, "reason": reason})
                ending = None
            except psycopg.Error as error:
                log.warning("runtime.session_failed", reason=describe(error))
                self._close()
                time.sleep(RECONNECT_MIN_SECONDS)
        self._close()

    def _loops_turn(self) -> bool:
        """True while every loop's tick is young: one that hangs holds up all it serves."""
        too_old = time.monotonic() - bounds.LOOP_TICK_MAX_AGE_SECONDS
        return all(ticked_at > too_old for ticked_at in self._ticked_at.values())

    def _await_next(self) -> None:
        """Wait for the next renewal; notice at once a lost session or a stop."""
        assert self._session is not None  # noqa: S101 - opened before
        pgconn = self._session.pgconn
        seconds = bounds.RENEW_SECONDS if self._loops_turn() else STALE_LOOP_POLL_SECONDS
        end = time.monotonic() + seconds
        events = (
            select.poll()
        )  # select() refuses descriptors past 1023, which busy workers have
        events.register(pgconn.socket, select.POLLIN)
        events.register(self._wake_reader, select.POLLIN)
        while (left := end - time.monotonic()) > 0 and not self._stopping.is_set():
            if any(descriptor == pgconn.socket for descriptor, _ in events.poll(left * 1000)):
                pgconn.consume_input()  # raises when the other side is gone
                if pgconn.status != psycopg.pq.ConnStatus.OK:
                    raise psycopg.OperationalError

    def _facts(self, runtime_id: UUID) -> dict[str, Any]:
        assert self._session is not None  # noqa: S101 - opened by the caller
        return {
            "id": runtime_id,
            "role": self._role,
            "host_id": hosts.host_id(),
            "host": hosts.host_name(),
            "pid": os.getpid(),
            "boot_id": hosts.boot_id(),
            "lock_key": self._lock_key,
            "backend": self._session.info.backend_pid if self._lock_key is not None else None,
            "lease": float(settings.HOLDFAST_LEASE_SECONDS),
        }

    def _value(self, statement: str, values: list[Any] | None = None) -> tuple[Any, ...]:
        assert self._session is not None  # noqa: S101 - opened by the caller
        row = self._session.execute(statement, values).fetchone()
        assert row is not None  # noqa: S101 - one row by construction
        return tuple(row)

    def _execute(self, statement: str, values: dict[str, Any]) -> int:
        assert self._session is not None  # noqa: S101 - opened by the caller
        return self._session.execute(statement, values).rowcount

    def _is_lost(self) -> bool:
        session = self._session
        return session is None or session.pgconn.status != psycopg.pq.ConnStatus.OK

    def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(psycopg.Error):
                session.close()


def _session_parameters(name: str) -> dict[str, Any]:
    """Return how the keeper connects: directly, as itself, and never waiting for long."""
    own: dict[str, Any] = {
        "application_name": name,
        "autocommit": True,
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": 3,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 5_000,
        "prepare_threshold": None,
    }
    direct = settings.DIRECT_DATABASE_URL
    said = conninfo_to_dict(direct) if direct else session_parameters()
    if direct or not settings.DATABASE_POOLED:
        # A pooler takes no options; behind one the timeouts belong to the role. The last word
        # on an option counts, and what else was said about the session holds.
        own["options"] = f"{said.get('options', '')} {TIMEOUTS}".strip()
    return {**said, **own}
