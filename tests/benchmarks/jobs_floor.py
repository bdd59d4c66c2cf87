"""The least that plain SQL does for a job: one statement a transaction, in one session.

python -m tests.benchmarks.jobs_floor URL PAYLOAD KIND, driven like a peer (`peers.course`).
The table has the payload of a job, its key, and an index of what waits; no other constraint, no
trigger. KIND is

    single     claim by id, finish
    threads    the same by eight threads, each in a session of its own
    steps      claim, write each of five steps, finish: seven commits
    writes     what a job of ours commits for five calls of one response that run one by one:
               claim; the request is started; it is completed and its five calls requested; the
               first call running; four times a call done and the next running; the last call
               done; finish: ten commits
    reads      the same for calls that run side by side: all five running, then all done: six
               commits
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from tests.benchmarks.peers.course import POSITION, RESULT_BYTES, orders, say

STEPS: Final = 5
SCHEMA: Final = """
    DROP TABLE IF EXISTS floor_job, floor_request, floor_step;
    CREATE TABLE floor_job (id bigint PRIMARY KEY, kind text, goal text, context text,
        prompt text, model text, authority jsonb, budget jsonb, request_digest text,
        state text NOT NULL DEFAULT 'queued', owner uuid, claimed_at timestamptz,
        finished_at timestamptz);
    CREATE INDEX ON floor_job (id) WHERE state = 'queued';
    CREATE TABLE floor_request (job_id bigint, state text NOT NULL, model text, digest text,
        PRIMARY KEY (job_id));
    CREATE TABLE floor_step (job_id bigint, sequence int, state text NOT NULL, name text,
        arguments text, result text, started_at timestamptz, finished_at timestamptz,
        PRIMARY KEY (job_id, sequence))
"""
FILL: Final = """
    INSERT INTO floor_job (id, kind, goal, context, prompt, model, authority, budget,
        request_digest)
    SELECT %(first)s + n, %(kind)s, %(goal)s, %(context)s, %(prompt)s, %(model)s, %(authority)s,
        %(budget)s, %(request_digest)s FROM generate_series(0, %(jobs)s - 1) AS n
"""
CLAIM: Final = (
    "UPDATE floor_job SET state = 'running', owner = gen_random_uuid(), claimed_at = now() "
    "WHERE id = %s AND state = 'queued'"
)
FINISH: Final = (
    "UPDATE floor_job SET state = 'completed', finished_at = now() "
    "WHERE id = %s AND state = 'running'"
)
STEP: Final = (
    "INSERT INTO floor_step (job_id, sequence, state, name, arguments, result, finished_at) "
    "VALUES (%s, %s, 'succeeded', 'search_history', '{\"query\": \"x\"}', %s, now())"
)
ASK: Final = "INSERT INTO floor_request VALUES (%s, 'started', 'scripted', 'digest')"
# one statement, so that the floor stays one round trip a commit
ANSWER: Final = """
    WITH answered AS (UPDATE floor_request SET state = 'completed' WHERE job_id = %s)
    INSERT INTO floor_step (job_id, sequence, state, name, arguments)
    SELECT %s, n, 'requested', 'search_history', '{"query": "x"}' FROM generate_series(1, 5) n
"""
START: Final = (
    "UPDATE floor_step SET state = 'running', started_at = now() "
    "WHERE job_id = %s AND sequence = ANY(%s) AND state = 'requested'"
)
OUTCOME: Final = (
    "UPDATE floor_step SET state = 'succeeded', result = %s, finished_at = now() "
    "WHERE job_id = %s AND sequence = ANY(%s) AND state = 'running'"
)
OUTCOME_AND_START: Final = f"WITH ended AS ({OUTCOME}) {START}"
RESULT: Final = "r" * RESULT_BYTES


def single(cursor: psycopg.Cursor[Any], job: int) -> None:
    """Claim and finish."""
    cursor.execute(CLAIM, [job])
    cursor.execute(FINISH, [job])


def steps(cursor: psycopg.Cursor[Any], job: int) -> None:
    """Claim, write the outcome of each step, finish."""
    cursor.execute(CLAIM, [job])
    for number in range(STEPS):
        cursor.execute(STEP, [job, number, RESULT])
    cursor.execute(FINISH, [job])


def writes(cursor: psycopg.Cursor[Any], job: int) -> None:
    """Claim, commit each step before its effect and after it with the next, finish."""
    cursor.execute(CLAIM, [job])
    cursor.execute(ASK, [job])
    cursor.execute(ANSWER, [job, job])
    cursor.execute(START, [job, [1]])
    for number in range(1, STEPS):
        cursor.execute(OUTCOME_AND_START, [RESULT, job, [number], job, [number + 1]])
    cursor.execute(OUTCOME, [RESULT, job, [STEPS]])
    cursor.execute(FINISH, [job])


def reads(cursor: psycopg.Cursor[Any], job: int) -> None:
    """Claim, commit all steps before their effects and after them, finish."""
    every = list(range(1, STEPS + 1))
    cursor.execute(CLAIM, [job])
    cursor.execute(ASK, [job])
    cursor.execute(ANSWER, [job, job])
    cursor.execute(START, [job, every])
    cursor.execute(OUTCOME, [RESULT, job, every])
    cursor.execute(FINISH, [job])


KINDS: Final = {"single": single, "steps": steps, "writes": writes, "reads": reads}
THREADS: Final = 8


class Threads:
    """Threads that claim and finish, each in a session of its own."""

    def __init__(self, url: str) -> None:
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(THREADS, initializer=self._begin, initargs=(url,))

    def do(self, jobs: range) -> None:
        """Do each job."""
        for _ in self._pool.map(self._do, jobs):
            pass

    def _begin(self, url: str) -> None:
        self._local.cursor = psycopg.connect(url, autocommit=True).cursor()

    def _do(self, job: int) -> None:
        single(self._local.cursor, job)


def main(url: str, payload: dict[str, Any], kind: str) -> None:
    """Work until told to stop."""
    first = 1
    with psycopg.connect(url, autocommit=True) as session, session.cursor() as cursor:
        cursor.execute(SCHEMA)
        threads = Threads(url)
        say("ready")
        for jobs in orders():
            with session.transaction():
                cursor.execute(FILL, {**payload, "first": first, "jobs": jobs})
                cursor.execute("ANALYZE floor_job")
            before = _position(cursor)
            began = time.perf_counter()
            if kind == "threads":
                threads.do(range(first, first + jobs))
            else:
                for job in range(first, first + jobs):
                    KINDS[kind](cursor, job)
            took = time.perf_counter() - began
            say("done", seconds=took, log_bytes=_position(cursor) - before)
            first += jobs


def _position(cursor: psycopg.Cursor[Any]) -> int:
    row = cursor.execute(POSITION).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3])
