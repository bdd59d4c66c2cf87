"""The loop of a worker's jobs: room, hints, looking for itself, cancels, draining, fencing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from recovery import serving
from recovery.bounds import PLANNED_RELEASES
from recovery.errors import StaleFence
from recovery.runner import registered
from recovery.switches import State, set_release
from tests.factories import ConversationFactory, RuntimeFactory, WorkJobFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.job_serving import Counter, asking
from tests.support.jobs import (
    calls_of,
    delegate,
    every_job_row,
    report_text,
    require_job_terminal,
    wait_until_job,
)
from tests.support.runtimes import Owner, looks_of
from tests.support.scripted import *  # noqa: F403
from tests.support.waiting import wait_until
from turns.host import TurnHost
from turns.providers.responses import ResponsesProvider
from turns.tools.registry import Registry
from turns.transitions import delete_conversation
from work import host as job_host
from work.host import JobHost
from work.models import WorkJob
from work.tasks import run_job
from work.transitions import claim_job, release_own_jobs, request_cancel
from work.workspaces import OpenWorkspace, ToolsAlone

pytestmark = pytest.mark.django_db(transaction=True)

StartHost = Callable[..., JobHost]


def with_tools(tools: Registry) -> dict[str, OpenWorkspace]:
    async def open_it(*_: object) -> ToolsAlone:
        return ToolsAlone(tools)

    return {"deep_work": open_it, "coding": open_it}


@pytest.fixture
def owner(transactional_db: None) -> Owner:
    return Owner()


@pytest.fixture
def start_host(
    owner: Owner, model: Simulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartHost]:
    """Start hosts that take hints alone, unless they `look`; each has ended afterwards."""
    started: list[JobHost] = []

    def start(*, look: bool = False, **options: Any) -> JobHost:
        monkeypatch.setattr(job_host, "LOOK_SECONDS", 0.05 if look else 3_600)
        parts: dict[str, Any] = {
            "owner": owner,
            "beat": owner.beat,
            "provider": lambda: ResponsesProvider(base_url=model.base_url),
            "workspaces": with_tools(Registry([Counter().tool])),
            "asking": asking,
            "clear_up": lambda: None,
        }
        host = JobHost(**(parts | options))
        host.start()
        started.append(host)
        return host

    yield start
    for host in started:
        host.drain(time.monotonic())


def asked(goal: str = "Find out.") -> WorkJob:
    """Return a queued job in a conversation of its own."""
    return delegate(ConversationFactory.create(), goal)


def test_hints_from_any_thread_are_served_and_repeated_ones_change_nothing(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    jobs = [asked() for _ in range(5)]
    threads = [
        threading.Thread(target=host.submit, args=[job.pk]) for job in jobs for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for job in jobs:
        assert wait_until_job(job).state == "completed"
        assert job.attempts == 1
    assert model.posts == 5


def test_the_task_hands_its_hint_to_the_host_of_its_process(start_host: StartHost) -> None:
    job = asked()
    run_job(job.pk)  # without a host it is lost
    job_host.serve_with(start_host())
    try:
        run_job(job.pk)
        assert wait_until_job(job).state == "completed"
    finally:
        job_host.serve_with(None)


def test_jobs_wait_unclaimed_while_there_is_no_room(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host(look=True, capacity=2)
    model.script(*(stalled("Once", gate=f"g{n}") for n in range(2)))
    jobs = [asked() for _ in range(4)]
    for job in jobs:
        host.submit(job.pk)
    model.wait_for_posts(2)
    assert WorkJob.objects.filter(state="queued", generation=0).count() == 2
    model.release("g0")
    model.release("g1")
    for job in jobs:
        assert wait_until_job(job).state == "completed"
    assert model.posts == 4


def test_a_job_nobody_hinted_at_is_found_where_it_may_be_claimed(
    start_host: StartHost, owner: Owner
) -> None:
    """A hint of a job that is bound to a machine may reach any worker."""
    assert owner.runtime is not None
    free = asked()
    here = WorkJobFactory.create(coding=True)
    elsewhere = WorkJobFactory.create(coding=True, computer__host_id="another-host")
    assert here.host_id == owner.runtime.host_id
    start_host(look=True)
    for job in (free, here):
        assert wait_until_job(job).owner == owner.runtime.pk
    elsewhere.refresh_from_db()
    assert (elsewhere.state, elsewhere.generation) == ("queued", 0)


def test_what_may_not_be_claimed_is_not_tried(
    start_host: StartHost, capfd: pytest.CaptureFixture[str], owner: Owner
) -> None:
    """Looking is a question, once a second; a refused claim would be a line in the log."""
    late = WorkJobFactory.create(deadline_at=Now() - timedelta(seconds=1))
    waiting = asked()
    set_release("work", State.DISABLED)
    start_host(look=True)
    wait_until(lambda: owner.beats >= 3, "it has looked many times")
    assert "job.not_claimed" not in "".join(capfd.readouterr())
    set_release("work", State.OPEN)
    assert wait_until_job(waiting).state == "completed"
    late.refresh_from_db()
    assert (late.state, late.generation) == ("queued", 0)


def test_looking_goes_on_after_the_database_was_away(
    start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = iter([RuntimeError("away"), StaleFence()])
    find = job_host._claimable

    def sometimes(*arguments: Any) -> list[int]:
        for failure in looked:
            raise failure
        return find(*arguments)

    monkeypatch.setattr(job_host, "_claimable", sometimes)
    start_host(look=True)
    assert wait_until_job(asked()).state == "completed"


def test_a_cancel_is_noticed_without_anybody_telling_the_worker(
    start_host: StartHost, model: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first look that begins after it, long before the service is given up."""
    host = start_host()
    model.script(stalled("Once upon"))
    job = asked()
    host.submit(job.pk)
    model.wait_for_gate("answer")
    looks = looks_of(host, monkeypatch)
    request_cancel(job.person_id, job.pk)
    may_have_missed_it = len(looks) + 1
    wait_until_job(job)
    assert any(looks[: may_have_missed_it + 1])
    assert job.state == "cancelled"
    model.wait_for_disconnects()


def test_a_job_that_another_runtime_claimed_meanwhile_is_let_go(
    start_host: StartHost, model: Simulator, capfd: pytest.CaptureFixture[str]
) -> None:
    """It runs and nobody cancelled it, but not under our claim."""
    host = start_host()
    model.script(stalled("Once upon"))
    job = asked()
    host.submit(job.pk)
    model.wait_for_gate("answer")
    (server, _) = host._live[job.pk]
    assert server.fence is not None
    release_own_jobs([server.fence])
    assert claim_job(job.pk, owner=RuntimeFactory.create().pk) is not None
    before = every_job_row()
    # its request is closed although the service never speaks again
    model.wait_for_disconnects()
    wait_until(lambda: job.pk not in host.known(), "it is let go")
    assert every_job_row() == before


def test_a_job_whose_conversation_is_removed_is_let_go(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    model.script(stalled("Once upon"))
    job = asked()
    host.submit(job.pk)
    model.wait_for_gate("answer")
    delete_conversation(job.person_id, job.conversation_id)
    # its request is closed although the service never speaks again
    model.wait_for_disconnects()
    wait_until(lambda: job.pk not in host.known(), "it is let go")
    assert not WorkJob.objects.exists()


def test_draining_brings_jobs_to_a_checkpoint_and_gives_them_back(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    model.script(stalled("Hm.", gate="never"))
    long = asked("long")
    host.submit(long.pk)
    model.wait_for_gate("never")
    host.stop_claiming()
    late = asked("late")
    host.submit(late.pk)
    host.drain(time.monotonic() + 0.2)
    for job in (long, late):
        job.refresh_from_db()
    assert (long.state, long.attempts, long.planned_releases) == ("queued", 1, 1)
    assert (late.state, late.generation) == ("queued", 0)

    # the next process goes on, and its adoption is not charged
    following = start_host()
    model.script(answer("Done."))
    following.submit(long.pk)
    assert wait_until_job(long).state == "completed"
    assert (long.attempts, long.planned_releases) == (2, 1)


def test_a_job_that_cannot_be_cut_short_in_time_shows_what_was_said_where_it_ends(
    start_host: StartHost, model: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who gives it up, as its server is stuck in its workspace."""
    monkeypatch.setattr(serving, "INTERRUPT_SECONDS", 2.0)

    class Stuck(ToolsAlone):
        async def release(self) -> None:
            await asyncio.Event().wait()

    async def open_it(*_: object) -> Stuck:
        return Stuck(Registry([]))

    host = start_host(workspaces={"deep_work": open_it})
    model.script(stalled("Once upon ", "a time", gate="never"))
    job = WorkJobFactory.create(
        released=True, attempts=PLANNED_RELEASES, planned_releases=PLANNED_RELEASES
    )
    host.submit(job.pk)
    model.wait_for_gate("never")
    (server, _) = host._live[job.pk]
    wait_until(lambda: server.said == "Once upon a time", "the words are read")
    host.drain(time.monotonic())
    job.refresh_from_db()
    assert (job.state, job.error_code) == ("interrupted", "runtime_stopped")
    assert report_text(job).endswith("What it said last:\n\nOnce upon a time")


def test_a_job_that_was_cancelled_and_drained_is_cancelled(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    model.script(stalled("Once"))
    job = asked()
    host.submit(job.pk)
    model.wait_for_gate("answer")
    request_cancel(job.person_id, job.pk)
    host.drain(time.monotonic())
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("cancelled", "cancelled")
    assert report_text(job)


def test_a_fenced_runtime_lets_go_of_everything_and_writes_nothing(
    start_host: StartHost, owner: Owner, model: Simulator
) -> None:
    host = start_host()
    jobs = [asked() for _ in range(3)]
    model.script(*(stalled("Once", gate=f"g{n}") for n in range(3)))
    for job in jobs:
        host.submit(job.pk)
    for n in range(3):
        model.wait_for_gate(f"g{n}")
    before = every_job_row()
    assert owner.runtime is not None
    buried, owner.runtime = owner.runtime.pk, None
    host.cancel_all(buried)
    model.wait_for_disconnects(3)
    wait_until(lambda: not host.known(), "all are let go")
    assert every_job_row() == before
    # while it has no id it claims nothing; under a new one it serves again
    waiting = asked()
    host.submit(waiting.pk)
    owner.runtime = RuntimeFactory.create()
    following = asked()
    host.submit(following.pk)
    assert wait_until_job(following).owner == owner.runtime.pk
    waiting.refresh_from_db()
    assert waiting.generation == 0
    assert calls_of(waiting) == []


def test_the_loop_says_that_it_turns(start_host: StartHost, owner: Owner) -> None:
    start_host()
    wait_until(lambda: owner.beats >= 2, "two beats")


def test_the_machine_is_cleared_when_the_host_starts_and_now_and_then(
    start_host: StartHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_host, "CLEAR_UP_SECONDS", 0.05)
    times: list[None] = []

    def clear_up() -> None:
        times.append(None)
        if len(times) == 1:
            raise OSError("the disk is away")

    start_host(clear_up=clear_up)
    wait_until(lambda: len(times) >= 3, "it was cleared three times")


def test_whatever_is_swept_is_served_by_a_loop_that_keeps_its_lease() -> None:
    """failure H09: a kind that is swept and never renewed would be taken from the living"""
    assert {recovery.model for recovery in registered().values()} == {
        TurnHost.model,
        JobHost.model,
    }


def test_looking_reads_no_ended_job(start_host: StartHost, owner: Owner) -> None:
    """Once a second in every worker: the index of live jobs answers it, in its order."""
    with transaction.atomic(), connection.cursor() as cursor:
        # a table without rows would be read as a whole
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            f"EXPLAIN {job_host._CLAIMABLE}",
            {"owner": owner(), "room": 32, "known": "{}", "kind": "work"},
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "work_workjob_live" in plan, plan
    assert "Sort" not in plan, plan
