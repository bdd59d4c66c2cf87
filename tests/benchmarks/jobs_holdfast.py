"""Jobs through `work.transitions`, as a worker process calls them.

python -m tests.benchmarks.jobs_holdfast URL KIND, driven like a peer (`peers.course`). KIND is

    single     claim_job, finish_job: no report, so no message
    threads    the same by the eight threads in which a worker does its transitions
    report     claim_job, append_report, finish_job, which shows the report in the conversation
    batchN     claim_jobs and finish_jobs, N at once
    steps      claim_job; a request is started, and completed with five calls; each call is
               started and finished; finish_job

But for `threads` it has one session, like the floor. Every job is in a conversation of its own;
hints of what changed leave as they do in a worker. The process is no runtime with a keeper: its
row has an hour's lease.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from uuid import UUID

import django
from django.db import connection

django.setup()

from recovery.executor import THREADS  # noqa: E402
from recovery.fences import Fence  # noqa: E402
from tests.benchmarks import jobs_fill  # noqa: E402
from tests.benchmarks.peers.course import POSITION, RESULT_BYTES, orders, say  # noqa: E402
from tests.factories import RuntimeFactory, UserFactory  # noqa: E402
from turns.digests import digest  # noqa: E402
from turns.transitions import RequestedCall, RequestFacts  # noqa: E402
from work.models import WorkJob, WorkStep  # noqa: E402
from work.transitions import (  # noqa: E402
    append_report,
    claim_job,
    claim_jobs,
    complete_provider_step,
    finish_job,
    finish_jobs,
    finish_step,
    start_provider_step,
    start_step,
)

STEPS: Final = 5
RESULT: Final = "r" * RESULT_BYTES
REPORT: Final = "What was found, in a few sentences. ".ljust(RESULT_BYTES, "r")
DIGEST: Final = digest("x")
FACTS: Final = RequestFacts(
    "responses", "scripted", DIGEST, DIGEST, DIGEST, DIGEST, 1, 12, True
)
CALLS: Final = [
    RequestedCall(f"call-{number}", "", "search_history", '{"query": "x"}')
    for number in range(STEPS)
]
POOL: Final = ThreadPoolExecutor(THREADS)
COMPLETED: Final = WorkJob.State.COMPLETED


def single(job: int, owner: UUID) -> None:
    """Claim and finish."""
    finish_job(_claimed(job, owner), COMPLETED)


def report(job: int, owner: UUID) -> None:
    """Claim, report, finish."""
    fence = _claimed(job, owner)
    append_report(fence, REPORT)
    finish_job(fence, COMPLETED)


def steps(job: int, owner: UUID) -> None:
    """Claim, let a response ask for five calls, do them, finish."""
    fence = _claimed(job, owner)
    asked = start_provider_step(fence, FACTS)
    called = complete_provider_step(
        fence, asked.pk, response_id="response", usage=None, text="", calls=CALLS
    )
    for step in called:
        start_step(fence, step.pk)
        finish_step(fence, step.pk, WorkStep.State.SUCCEEDED, result=RESULT)
    finish_job(fence, COMPLETED)


def one_by_one(do: Callable[[int, UUID], None], jobs: Iterable[int], owner: UUID) -> None:
    """Do each job."""
    for job in jobs:
        do(job, owner)


def by_threads(jobs: Iterable[int], owner: UUID) -> None:
    """Do each job, eight at once, each thread in a session of its own."""

    def do(job: int) -> None:
        single(job, owner)

    for _ in POOL.map(do, jobs):
        pass


def batches(size: int, jobs: range, owner: UUID) -> None:
    """Claim and finish so many at once, until nothing waits."""
    count = 0
    while fences := claim_jobs(owner=owner, limit=size):
        finish_jobs(fences, COMPLETED)
        count += len(fences)
    assert count == len(jobs), (count, len(jobs))


def main(kind: str) -> None:
    """Work until told to stop."""
    do: Callable[[range, UUID], None] = by_threads
    if kind.startswith("batch"):
        do = partial(batches, int(kind.removeprefix("batch")))
    elif kind != "threads":
        do = partial(one_by_one, {"single": single, "report": report, "steps": steps}[kind])
    owner, person, first = RuntimeFactory.create().pk, UserFactory.create().pk, 1
    say("ready")
    for jobs in orders():
        jobs_fill.queued(jobs, first=first, person=person)
        before = _position()
        began = time.perf_counter()
        do(range(first, first + jobs), owner)
        took = time.perf_counter() - began
        say("done", seconds=took, log_bytes=_position() - before)
        first += jobs
    assert not WorkJob.objects.open().exists()


def _claimed(job: int, owner: UUID) -> Fence:
    fence = claim_job(job, owner=owner)
    assert fence is not None
    return fence


def _position() -> int:
    with connection.cursor() as cursor:
        cursor.execute(POSITION)
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    main(sys.argv[2])
