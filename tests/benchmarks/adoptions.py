"""From kill -9 to the next generation running, with default settings and real processes.

Two Celery workers have four jobs; each job asks a model, which answers within a second, in
pieces, and asks for a look into the history, again and again. One worker that has some of them
is killed at a random moment. The clock runs until all of those run under a higher generation in
the database: seen dead, buried, released, hinted at, claimed by the other.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

from config.embedded.children import start
from config.embedded.postgres import free_port
from tests.benchmarks.databases import Place
from tests.benchmarks.deaths import WATCHED, value
from tests.benchmarks.measuring import median, percentile
from tests.benchmarks.report import Line, at_most, exactly
from tests.benchmarks.subscribers import SERVE
from tests.factories import ConversationFactory
from tests.simulators.client import in_thread
from tests.simulators.replies import Reply, drip
from tests.simulators.responses_wire import Stream
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.worker import Worker
from work.models import WorkJob
from work.transitions import JobAsk, admit_job, request_cancel

JOBS: Final = 4
LOOK_SECONDS: Final = 0.005
PIECES: Final = 45
PAUSE_SECONDS: Final = 0.02
WORKING: Final = """
    SELECT count(DISTINCT job_id) FROM work_workstep s JOIN work_workjob j ON j.id = s.job_id
    WHERE j.state = 'running' AND s.state = 'succeeded' AND j.id = ANY('{{{ids}}}')
"""
ADOPTED: Final = """
    SELECT count(*) FROM work_workjob
    WHERE state = 'running' AND generation = 3 AND attempts = 2 AND id = ANY('{{{ids}}}')
"""


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return the times of 30 kills."""
    kills = 5 if quick else 30
    with in_thread(_asks_on()) as model:
        environment = {
            **os.environ,
            **place.environment,
            "LLM_API": "responses",
            "LLM_BASE_URL": model.base_url,
        }
        log = place.directory / "web.log"
        web = start(
            (*SERVE, "--port", str(free_port())), log=log, environment=environment, cwd=ROOT
        )
        bench = _Adoptions(place, environment)
        try:
            wait_until(
                lambda: value(WATCHED), "the database was watched for a lease", seconds=60
            )
            times = [bench.kill() for _ in range(kills)]
        finally:
            bench.end()
            web.kill()
            web.wait()
    return [
        at_most(f"kill -9 to adopted and running: p99 of {kills}", percentile(times, 0.99), 3,
                " s"),
        Line("the same: median, least, most",
             f"{median(times):.2f} s, {min(times):.2f} s, {max(times):.2f} s"),
        exactly("jobs adopted otherwise than once", bench.otherwise, 0),
    ]  # fmt: skip


def _asks_on() -> Reply:
    """Return the answer to every request: a call, nine tenths of a second long."""
    stream = Stream("resp_1")
    frames = stream.opening()
    frames += stream.call("search_history", '{"query": "office"}', call_id=None, item_id="fc_1")
    frames.append(stream.terminal())
    body = b"".join(frames)
    return Reply([drip(body, size=-(-len(body) // PIECES), seconds=PAUSE_SECONDS)], repeat=True)


class _Adoptions:
    def __init__(self, place: Place, environment: dict[str, str]) -> None:
        self._place, self._environment = place, environment
        self._workers: list[Worker] = []
        self.otherwise = 0

    def kill(self) -> float:
        """Kill a worker in the middle of its jobs; the other takes them."""
        while len(self._workers) < 2:
            self._start()
        jobs = self._delegate()
        victim = next(w for w in self._workers if w.runtime.pk == jobs[0].owner)
        lost = [job for job in jobs if job.owner == jobs[0].owner]
        ids = ",".join(str(job.pk) for job in lost)
        wait_until(lambda: value(WORKING.format(ids=ids)) == len(lost), "every job works")
        time.sleep(random.uniform(0.0, 1.5))  # time: a moment that fits no rhythm of the sweep
        began = time.monotonic()
        victim.kill()
        while value(ADOPTED.format(ids=ids)) < len(lost):
            if time.monotonic() - began > 60:
                stand = WorkJob.objects.filter(pk__in=[job.pk for job in lost])
                raise AssertionError([*stand.values_list("state", "error_code", "generation")])
            time.sleep(LOOK_SECONDS)  # time: how finely the death is timed
        took = time.monotonic() - began
        self._workers.remove(victim)
        self._stop(jobs, lost)
        return took

    def end(self) -> None:
        """Leave no worker."""
        for worker in self._workers:
            worker.kill()

    def _start(self) -> Worker:
        directory = self._place.directory / f"worker-{time.monotonic_ns()}"
        worker = Worker(self._environment, directory)
        self._workers.append(worker.start())
        return worker

    def _delegate(self) -> list[WorkJob]:
        """Return jobs that run in either worker."""
        jobs = []
        for _ in range(JOBS):
            conversation = ConversationFactory.create()
            ask = JobAsk("deep_work", "Find what is open.")
            jobs.append(admit_job(conversation.owner_id, conversation.pk, ask).job)
            self._workers[0].hint_job(jobs[-1].pk)
        running = WorkJob.objects.filter(pk__in=[job.pk for job in jobs], state="running")
        wait_until(lambda: running.count() == JOBS, "every job runs")
        return list(running.order_by("pk"))

    def _stop(self, jobs: list[WorkJob], lost: list[WorkJob]) -> None:
        for job in jobs:
            request_cancel(job.person_id, job.pk)
        open_jobs = WorkJob.objects.open().filter(pk__in=[job.pk for job in jobs])
        wait_until(lambda: not open_jobs.exists(), "the jobs have ended")
        ends = WorkJob.objects.filter(pk__in=[job.pk for job in lost]).values_list(
            "state", "generation", "attempts"
        )
        # claimed, released, claimed
        self.otherwise += sum(end != ("cancelled", 3, 2) for end in ends)
