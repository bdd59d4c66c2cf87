"""Procrastinate's own worker (`App.run_worker_async`) on psycopg's pool and uvloop.

python -m tests.benchmarks.peers.procrastinate_worker URL install|work PAYLOAD_BYTES CONCURRENCY

One function call fetches a job, another ends it; triggers write an event for each. It keeps
what has ended. It has no steps.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import procrastinate
import psycopg
import uvloop

from tests.benchmarks.peers.course import Course

FILL = """
    SELECT procrastinate_defer_jobs_v1(array_agg(ROW('default', 'job', 0, NULL, NULL,
        jsonb_build_object('prompt', %s::text), NULL)::procrastinate_job_to_defer_v1))
    FROM generate_series(1, %s)
"""


async def main(url: str, word: str, payload_bytes: int, concurrency: int) -> None:
    """Make its tables, or work until told to stop."""
    connector = procrastinate.PsycopgConnector(
        conninfo=url, min_size=concurrency, max_size=concurrency + 4
    )
    app = procrastinate.App(connector=connector)

    def fill(cursor: psycopg.Cursor[Any], jobs: int) -> None:
        cursor.execute(FILL, ["p" * payload_bytes, jobs])
        cursor.execute("ANALYZE procrastinate_jobs")

    course = Course(url, fill=fill, ended="procrastinate_jobs WHERE status = 'succeeded'")

    async def job(prompt: str) -> None:
        course.done += 1

    app.task(name="job", queue="default")(job)
    async with app.open_async():
        if word == "install":
            await app.schema_manager.apply_schema_async()
            return
        running = asyncio.create_task(
            app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)
        )
        await asyncio.to_thread(course.run)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(main(sys.argv[1], sys.argv[2], *(int(a) for a in (sys.argv[3:] or (0, 1)))))
