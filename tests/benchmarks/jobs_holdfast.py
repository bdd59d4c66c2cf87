"""Jobs through `work.transitions`, as a worker process calls them.

python -m tests.benchmarks.jobs_holdfast URL KIND, driven like a peer (`peers.course`). KIND is

    single     claim_job, finish_job: no report, so no message
    threads    the same by the eight threads in which a worker does its transitions
    report     claim_job, append_report, finish_job, which shows the report in the conversation
    batchN     claim_jobs and finish_jobs, N at once
    writes     claim_job; a request is started, and completed with five calls; they run one by
               one, as calls that write do: each starts with the outcome of the one before it;
               finish_job
    reads      the same with calls that run side by side, as calls that read do: all start
               together, and end together, as those do that take the same time

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
from turns.transitions import CallOutcome, RequestedCall, RequestFacts  # noqa: E402
from work.models import WorkJob, WorkStep  # noqa: E402
from work.transitions import (  # noqa: E402
    append_report,
    claim_job,
    claim_jobs,
    complete_provider_step,
    finish_job,
    finish_jobs,
    move_steps,
    start_provider_step,
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
    finish_job(fence, COMPLETED, reported=True)


def writes(job: int, owner: UUID) -> None:
    """Claim, let a response ask for five calls, do them one by one, finish."""
    fence = _claimed(job, owner)
    ended: list[CallOutcome] = []
    for step in _called(fence):
        [started] = move_steps(fence, ended=ended, starting=[step.pk])
        ended = [_outcome(started)]
    move_steps(fence, ended=ended)
    finish_job(fence, COMPLETED)


def reads(job: int, owner: UUID) -> None:
    """Claim, let a response ask for five calls, do them side by side, finish."""
    fence = _claimed(job, owner)
    started = move_steps(fence, starting=[step.pk for step in _called(fence)])
    move_steps(fence, ended=[_outcome(step) for step in started])
    finish_job(fence, COMPLETED)


def _called(fence: Fence) -> list[WorkStep]:
    """Return the five calls of a response, stored."""
    asked = start_provider_step(fence, FACTS)
    return complete_provider_step(
        fence, asked.pk, response_id="response", usage=None, text="", calls=CALLS
    )


def _outcome(step: WorkStep) -> CallOutcome:
    return CallOutcome.of(step.pk, WorkStep.State.SUCCEEDED, result=RESULT)


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


KINDS: Final = {"single": single, "report": report, "writes": writes, "reads": reads}


def main(kind: str) -> None:
    """Work until told to stop."""
    do: Callable[[range, UUID], None] = by_threads
    if kind.startswith("batch"):
        do = partial(batches, int(kind.removeprefix("batch")))
    elif kind != "threads":
        do = partial(one_by_one, KINDS[kind])
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
