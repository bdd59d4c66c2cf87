"""Transitions off the loop: eight threads, eight connections, healed after a loss."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import psycopg
import pytest
from django.db import ProgrammingError, connection

from recovery.executor import THREADS, in_thread

pytestmark = pytest.mark.django_db(transaction=True)

who: contextvars.ContextVar[str] = contextvars.ContextVar("who")


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


async def test_calls_run_side_by_side_on_eight_connections() -> None:
    together = threading.Barrier(THREADS)

    def meet() -> int:
        together.wait(60)
        return backend()

    first = await asyncio.gather(*(in_thread(meet) for _ in range(THREADS)))
    second = await asyncio.gather(*(in_thread(meet) for _ in range(THREADS)))
    assert len(set(first)) == THREADS
    assert set(second) == set(first)  # connections are kept


async def test_a_broken_connection_is_replaced(database_url: str) -> None:
    pids = set(await asyncio.gather(*(in_thread(backend) for _ in range(4 * THREADS))))
    with psycopg.connect(database_url, autocommit=True) as other:
        for pid in pids:
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
    after = await asyncio.gather(*(in_thread(backend) for _ in range(4 * THREADS)))
    assert not pids & set(after)


async def test_a_session_that_takes_a_statement_for_wrong_is_replaced() -> None:
    """By a plan that it made before a migration it would do so for ever."""
    sessions: set[int] = set()

    def wrong() -> None:
        sessions.add(backend())
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing_of_this_name")

    with pytest.raises(ProgrammingError):
        await in_thread(wrong)
    after = await asyncio.gather(*(in_thread(backend) for _ in range(4 * THREADS)))
    assert not sessions & set(after)


async def test_arguments_results_errors_and_context_pass_through() -> None:
    who.set("me")

    def three(a: int, *, b: int) -> tuple[int, int, str]:
        return a, b, who.get()

    assert await in_thread(three, 1, b=2) == (1, 2, "me")

    def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await in_thread(fail)
