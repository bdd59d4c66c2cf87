"""The worker of absurd-sdk (`Absurd.start_worker`), its synchronous client.

python -m tests.benchmarks.peers.absurd_worker URL install|work PAYLOAD_BYTES BATCH_SIZE STEPS

It claims BATCH_SIZE tasks with one function call, does them one after the other, and completes
each with another call. A step is looked up with one call, and written with another when it is
done.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import psycopg
from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL

from tests.benchmarks.peers.course import RESULT_BYTES, Course

QUEUE = "bench"
RESULT = "r" * RESULT_BYTES
FILL = """
    SELECT count(*) FROM (
        SELECT absurd.spawn_task('bench', 'job', %s::jsonb, '{}'::jsonb)
        FROM generate_series(1, %s) OFFSET 0) AS spawned
"""


def install(url: str) -> None:
    """Make its tables."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(BUNDLED_SCHEMA_SQL)
        session.execute("SELECT absurd.create_queue(%s)", [QUEUE])


def work(url: str, payload_bytes: int, batch_size: int, steps: int) -> None:
    """Work until told to stop."""

    def fill(cursor: psycopg.Cursor[Any], jobs: int) -> None:
        cursor.execute(FILL, [json.dumps({"prompt": "p" * payload_bytes}), jobs])
        cursor.execute("ANALYZE absurd.t_bench; ANALYZE absurd.r_bench")

    course = Course(url, fill=fill, ended="absurd.r_bench WHERE state = 'completed'")
    app = Absurd(url, queue_name=QUEUE)

    def job(_params: Any, context: Any) -> None:
        for number in range(steps):
            context.step(f"step-{number}", lambda: RESULT)
        course.done += 1

    app.register_task("job")(job)
    worker = threading.Thread(
        target=app.start_worker,
        kwargs={"concurrency": 1, "batch_size": batch_size, "poll_interval": 0.005},
    )
    worker.start()
    course.run()
    app.stop_worker()
    worker.join()


if __name__ == "__main__":
    if sys.argv[2] == "install":
        install(sys.argv[1])
    else:
        work(sys.argv[1], *(int(a) for a in sys.argv[3:]))
