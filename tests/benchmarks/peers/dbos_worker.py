"""DBOS's own queue worker (`DBOS.launch`), polling its queue every 10 ms.

python -m tests.benchmarks.peers.dbos_worker URL install|work PAYLOAD_BYTES CONCURRENCY STEPS

It claims what waits (at most CONCURRENCY at once, 0 for all) with one transaction, reads it,
and runs each workflow on a pool of threads. A step is written once, when it is done.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import psycopg
from dbos import DBOS

from tests.benchmarks.peers.course import RESULT_BYTES, Course

QUEUE = "bench"
VERSION = "1"
RESULT = "r" * RESULT_BYTES
FILL = """
    SELECT count(*) FROM (
        SELECT dbos.enqueue_workflow(workflow_name => 'job', queue_name => 'bench',
            positional_args => ARRAY[to_json(%s::text)], app_version => '1',
            application_name => 'bench')
        FROM generate_series(1, %s) OFFSET 0) AS enqueued
"""


def main(url: str, word: str, payload_bytes: int, concurrency: int, steps: int) -> None:
    """Make its tables, or work until told to stop."""

    def fill(cursor: psycopg.Cursor[Any], jobs: int) -> None:
        cursor.execute(FILL, ["p" * payload_bytes, jobs])
        cursor.execute("ANALYZE dbos.workflow_status")

    course = Course(url, fill=fill, ended="dbos.workflow_status WHERE status = 'SUCCESS'")
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "application_version": VERSION,
            "run_migrations": word == "install",
            "log_level": "WARNING",
        }
    )

    def step() -> str:
        return RESULT

    def job(prompt: str) -> None:
        for number in range(steps):
            DBOS.run_step({"name": f"step-{number}"}, step)
        course.done += 1

    DBOS.workflow(name="job")(job)
    DBOS.launch()
    DBOS.register_queue(
        QUEUE, worker_concurrency=concurrency or None, polling_interval_sec=0.01
    )
    if word == "work":
        course.run()
    DBOS.destroy()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(sys.argv[1], sys.argv[2], *(int(a) for a in (sys.argv[3:] or (0, 0, 0))))
