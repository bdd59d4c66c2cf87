"""From kill -9 to the last terminal row, with default settings and real processes.

A Celery worker streams five answers; it is killed at a random moment. The clock runs until the
turns, their answers, receipts and provider steps are all terminal and no chunk is left. In one
half of the kills another worker lives on; in the other it was the only one, and a web process
is all that is left to notice.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

from django.db import connection

from config.embedded.children import start
from config.embedded.postgres import free_port
from tests.benchmarks.databases import Place
from tests.benchmarks.measuring import median, percentile
from tests.benchmarks.report import Line, at_most, exactly
from tests.benchmarks.subscribers import SERVE
from tests.factories import ConversationFactory, UserFactory
from tests.support.processes import ROOT, ChildProcess
from tests.support.waiting import wait_until
from tests.support.worker import Worker
from turns.models import Turn
from turns.transitions import admit_turn

TURNS: Final = 5
LOOK_SECONDS: Final = 0.005
LEFT_OPEN: Final = """
    SELECT (SELECT count(*) FROM turns_turn WHERE state IN ('queued', 'running'))
        + (SELECT count(*) FROM turns_message WHERE state = 'streaming')
        + (SELECT count(*) FROM turns_receipt WHERE state = 'captured')
        + (SELECT count(*) FROM turns_providerstep WHERE state = 'started')
        + (SELECT count(*) FROM turns_textchunk)
"""
WATCHED: Final = """
    SELECT count(*) FROM recovery_pulse
    WHERE unbroken_since < clock_timestamp() - interval '16 s'
"""


def run(place: Place, *, quick: bool) -> list[Line]:
    """Return the times of 30 kills of each kind."""
    kills = 3 if quick else 30
    log = place.directory / "processes.log"
    environment = {**os.environ, **place.environment, "LLM_API": "responses"}
    model = ChildProcess("tests.benchmarks.model", environment=environment, log=log)
    port = model.expect("listening")["port"]
    environment["LLM_BASE_URL"] = f"http://127.0.0.1:{port}/v1"
    web = start(
        (*SERVE, "--port", str(free_port())), log=log, environment=environment, cwd=ROOT
    )
    bench = _Deaths(place, model, environment)
    try:
        wait_until(lambda: value(WATCHED), "the database was watched for a lease", seconds=60)
        beside = [bench.kill_beside_another() for _ in range(kills)]
        alone = [bench.kill_the_only_one() for _ in range(kills)]
    finally:
        bench.end()
        model.close()
        web.kill()
        web.wait()
    return [
        *_lines("another worker lives", beside),
        *_lines("it was the only worker", alone),
        exactly("rows that ended otherwise than interrupted", bench.otherwise, 0),
    ]


def _lines(what: str, times: list[float]) -> list[Line]:
    return [
        at_most(f"kill -9 to terminal, {what}: p99 of {len(times)}",
                percentile(times, 0.99), 2.5, " s"),
        Line(f"kill -9 to terminal, {what}: median, least, most",
             f"{median(times):.2f} s, {min(times):.2f} s, {max(times):.2f} s"),
    ]  # fmt: skip


class _Deaths:
    def __init__(self, place: Place, model: ChildProcess, environment: dict[str, str]) -> None:
        self._place, self._model, self._environment = place, model, environment
        self._workers: list[Worker] = []
        self.otherwise = 0

    def kill_beside_another(self) -> float:
        """Kill a worker while another one lives; that one is the next to die."""
        victim = self._victim()
        turns = self._stream()
        self._start()
        return self._kill(victim, turns)

    def kill_the_only_one(self) -> float:
        """Kill the only worker."""
        while len(self._workers) > 1:
            self._workers.pop(0).kill()
            wait_until(lambda: not value(LEFT_OPEN), "nothing is open")
        victim = self._victim()
        return self._kill(victim, self._stream())

    def end(self) -> None:
        """Leave no worker."""
        for worker in self._workers:
            worker.kill()

    def _victim(self) -> Worker:
        return self._workers[0] if self._workers else self._start()

    def _start(self) -> Worker:
        directory = self._place.directory / f"worker-{time.monotonic_ns()}"
        worker = Worker(self._environment, directory)
        self._workers.append(worker.start())
        return worker

    def _stream(self) -> list[int]:
        """Return turns whose answers are streaming, with text committed."""
        self._model.say("expect", streams=TURNS, per_second=10, bytes=24)
        person = UserFactory.create()
        turns = []
        for number in range(TURNS):
            conversation = ConversationFactory.create(owner=person)
            turn = admit_turn(person.pk, conversation.pk, f"question {number}").turn
            turns.append(turn.pk)
            self._workers[0].hint(turn.pk)
        self._model.expect("ready")
        self._model.say("go")
        wait_until(
            lambda: value("SELECT count(DISTINCT turn_id) FROM turns_textchunk") == TURNS,
            "every answer has begun",
        )
        return turns

    def _kill(self, victim: Worker, turns: list[int]) -> float:
        time.sleep(random.uniform(0.0, 1.5))  # time: a moment that fits no rhythm of the sweep
        began = time.monotonic()
        victim.kill()
        while value(LEFT_OPEN):
            if time.monotonic() - began > 60:
                raise AssertionError("rows stayed open")
            time.sleep(LOOK_SECONDS)  # time: how finely the death is timed
        took = time.monotonic() - began
        self._workers.remove(victim)
        self._model.say("stop")
        self._model.expect("stopped")
        ends = Turn.objects.filter(pk__in=turns).values_list("state", "error_code")
        self.otherwise += sum(end != ("interrupted", "runtime_lost") for end in ends)
        return took


def value(statement: str) -> int:
    """Return the one number that the statement selects."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])
