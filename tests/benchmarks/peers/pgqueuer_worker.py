"""PgQueuer's own worker (`QueueManager.run`) on asyncpg and uvloop, all its tables logged.

python -m tests.benchmarks.peers.pgqueuer_worker URL install|work PAYLOAD_BYTES BATCH_SIZE

It picks BATCH_SIZE jobs with one statement, runs them as tasks, and flushes the same number of
ends with one statement that deletes the jobs and logs them. It has no steps.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import asyncpg
import psycopg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries

from tests.benchmarks.peers.course import Course


async def install(url: str) -> None:
    """Make its tables."""
    connection = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def work(url: str, payload_bytes: int, batch_size: int) -> None:
    """Work until told to stop."""

    def fill(cursor: psycopg.Cursor[Any], jobs: int) -> None:
        cursor.execute(
            "INSERT INTO pgqueuer (priority, entrypoint, payload, status) "
            "SELECT 0, 'job', %s, 'queued' FROM generate_series(1, %s)",
            [b"p" * payload_bytes, jobs],
        )
        cursor.execute("ANALYZE pgqueuer")

    course = Course(url, fill=fill, ended="pgqueuer_log WHERE status = 'successful'")
    connection = await asyncpg.connect(url)
    manager = QueueManager(Queries(AsyncpgDriver(connection)))

    async def job(_job: Any) -> None:
        course.done += 1

    manager.entrypoint("job", accepts_context=False)(job)
    running = asyncio.create_task(manager.run(batch_size=batch_size))
    await asyncio.to_thread(course.run)
    manager.shutdown.set()
    await running


if __name__ == "__main__":
    if sys.argv[2] == "install":
        uvloop.run(install(sys.argv[1]))
    else:
        uvloop.run(work(sys.argv[1], int(sys.argv[3]), int(sys.argv[4])))
