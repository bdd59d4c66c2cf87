"""Two sessions that want the same rows: who holds, who waits, who goes first.

A gate is a third session holding one row lock. A transition that must take that row stops
there, inside its transaction, with the locks it took before; PostgreSQL itself says that it
waits. So an order of events is built from locks and looked up, never from time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Generic, TypeVar

import psycopg
from django.db import connection, connections

from tests.support.waiting import wait_until

T = TypeVar("T")
RESULT_SECONDS = 60.0


class Rival(Generic[T]):
    """A call on a thread and a database session of its own."""

    def __init__(self, act: Callable[[], T]) -> None:
        pids: SimpleQueue[int] = SimpleQueue()

        def run() -> T:
            try:
                with connection.cursor() as cursor:
                    # what a test does meanwhile may take longer than five seconds
                    cursor.execute(f"SET lock_timeout = '{RESULT_SECONDS:.0f}s'")
                pids.put(connection.connection.info.backend_pid)
                return act()
            finally:
                connections.close_all()

        self._pool = ThreadPoolExecutor(1)
        self._future: Future[T] = self._pool.submit(run)
        self._pool.shutdown(wait=False)
        self.pid = pids.get(timeout=RESULT_SECONDS)

    def waits(self) -> bool:
        """True while PostgreSQL holds this connection up behind another."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s))", [self.pid])
            return bool(cursor.fetchone()[0])

    def waits_for(self, pid: int) -> bool:
        """True while this connection waits for that one."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s = ANY(pg_blocking_pids(%s))", [pid, self.pid])
            return bool(cursor.fetchone()[0])

    def until_it_waits(self) -> Rival[T]:
        """Return once it is held up; fail when it has ended instead."""
        wait_until(
            lambda: self._future.done() or self.waits(),
            "the rival waits",
            seconds=RESULT_SECONDS,
        )
        if self._future.done():
            raise AssertionError(f"it did not wait: {self._future!r}")
        return self

    def result(self) -> T:
        """Return what it returned, or raise what it raised."""
        return self._future.result(timeout=RESULT_SECONDS)

    def error(self, *, seconds: float = RESULT_SECONDS) -> BaseException | None:
        """Return what it raised, if anything."""
        return self._future.exception(timeout=seconds)


class Gate:
    """A session that holds a row until it is opened."""

    def __init__(self, session: psycopg.Connection) -> None:
        self._session = session
        self.pid = session.info.backend_pid

    def open(self) -> None:
        """Let go of the row."""
        self._session.rollback()

    def commit(self) -> None:
        """Let go of the row as this connection has changed it."""
        self._session.commit()


@contextmanager
def gate(database_url: str, sql: str, *parameters: object) -> Iterator[Gate]:
    """Hold the rows that `sql` locks until the gate is opened, or the block ends."""
    with psycopg.connect(database_url) as session:
        # this one waits for nobody
        session.execute(sql, parameters)
        yield Gate(session)
        session.rollback()
