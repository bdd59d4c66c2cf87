"""Whose job it is: hints, cancels, lost fences, and the place where it works."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from recovery.errors import ErrorCode, Refused, StaleFence
from recovery.executor import in_thread
from recovery.fences import Fence
from tests.factories import RuntimeFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import error_reply
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.job_serving import (
    Counter,
    Nothing,
    counting,
    ended,
    offered,
    serving_jobs,
    steps_of,
    told,
)
from tests.support.jobs import every_job_row, shown
from tests.support.scripted import *  # noqa: F403
from turns.tools.registry import Invocation, Registry
from work.coding.errors import WorkspaceLost
from work.models import JobReport, WorkJob
from work.server import JobServer
from work.transitions import release_own_jobs, request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


async def test_the_same_hint_three_times_is_one_run(model: Simulator) -> None:
    """failures H14, H15"""
    model.script(answer("Once."))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        await asyncio.gather(*(runtime.server(job.pk).run() for _ in range(3)))
        job = await runtime.serve(job)
    assert await ended(job) == ("completed", "")
    assert (job.generation, job.attempts, model.posts) == (1, 1, 1)


async def test_a_dead_runtime_claims_nothing(model: Simulator) -> None:
    async with serving_jobs(model.base_url) as runtime:
        runtime.runtime = await in_thread(lambda: RuntimeFactory.create(lost=True))
        job = await runtime.serve(await runtime.ask())
    assert (job.state, job.generation, model.posts) == ("queued", 0, 0)


async def test_a_cancel_while_the_model_is_asked_closes_the_request(model: Simulator) -> None:
    """failure H29"""
    model.script(stalled("Once upon"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "answer")
        await in_thread(request_cancel, job.person_id, job.pk)
        server.cancel()
        await task
        await asyncio.to_thread(model.wait_for_disconnects)
    assert await ended(job) == ("cancelled", "cancelled")
    assert await told(job) == "This job was cancelled."


async def test_after_a_cancel_no_call_and_no_request_starts(model: Simulator) -> None:
    """failure H29: also when the worker has not noticed yet"""

    def cancel(invocation: Invocation[Nothing]) -> None:
        job = WorkJob.objects.get(conversation_id=invocation.conversation_id)
        request_cancel(job.person_id, job.pk)

    counter = Counter(before=cancel)
    model.script(tool_calls(("c1", "count", "{}"), ("c2", "count", "{}")))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("cancelled", "cancelled")
    assert (len(counter.calls), model.posts) == (1, 1)
    assert [call.state for call in await steps_of(job)] == ["succeeded", "cancelled"]


async def test_a_cancel_between_report_and_end_makes_it_cancelled_and_keeps_the_evidence(
    model: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """failure H27"""
    model.script(answer("Done after all."))

    async def cancel_there(point: str) -> None:
        if point == "job.report_appended":
            job = await in_thread(WorkJob.objects.get)
            await in_thread(request_cancel, job.person_id, job.pk)

    monkeypatch.setattr("work.server.areach", cancel_there)
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("cancelled", "cancelled")
    assert await in_thread(shown, job) == ["This job was cancelled."]
    kinds = await in_thread(lambda: dict(JobReport.objects.values_list("kind", "text")))
    assert kinds["result"] == "Done after all."


async def test_a_server_whose_job_was_given_to_another_writes_nothing(
    model: Simulator,
) -> None:
    """failure H11"""
    model.script(stalled("Once upon"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "answer")

        def overtake() -> dict[str, Any]:
            assert server.fence is not None
            release_own_jobs([server.fence])
            return every_job_row()

        before = await in_thread(overtake)
        model.release("answer")
        assert await task is None
        assert await in_thread(every_job_row) == before


async def test_a_server_that_winds_up_gives_its_job_back_between_two_calls(
    model: Simulator,
) -> None:
    model.script(tool_calls(("c1", "count", "{}"), ("c2", "count", "{}")))
    counter = Counter()
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        counter.before = lambda _: server.wind_up()
        assert await server.run() == server.fence
    await in_thread(job.refresh_from_db)
    assert (job.state, job.attempts, job.planned_releases) == ("queued", 1, 1)
    assert [call.state for call in await steps_of(job)] == ["succeeded", "requested"]
    assert model.posts == 1


async def test_a_server_that_winds_up_before_its_claim_claims_nothing(
    model: Simulator,
) -> None:
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        server.wind_up()
        assert await server.run() is None
    await in_thread(job.refresh_from_db)
    assert (job.state, job.generation) == ("queued", 0)


@dataclass
class Bench:
    """A workspace that writes down what is done with it."""

    left: str = ""
    done: list[str] = field(default_factory=list)
    briefing: str = "You sit at a bench."
    counter: Counter = field(default_factory=Counter)
    is_there: bool = True

    async def open(self, _: WorkJob, fence: Fence) -> Bench:
        self.done.append(f"opened by {fence.generation}")
        return self

    def registry(self) -> Registry:
        return Registry([self.counter.tool])

    def is_ours(self) -> bool:
        return self.is_there

    async def take_down(self) -> str:
        self.done.append("taken down")
        return self.left

    async def close(self) -> str:
        self.done.append("closed")
        return self.left

    async def release(self) -> None:
        self.done.append("released")


async def test_what_a_workspace_leaves_behind_stands_at_the_end_of_the_report(
    model: Simulator,
) -> None:
    bench = Bench(left="It is on branch b, at commit c.")
    model.script(counting(1), answer("Done. " + "x" * 9_000, response_id="resp_2"))
    async with serving_jobs(model.base_url, workspaces={"deep_work": bench.open}) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("completed", "")
    text = await told(job)
    assert text.startswith("Done. xxx")
    assert text.endswith("\n\nIt is on branch b, at commit c.")
    assert len(text.encode()) <= 8_000
    assert bench.done == ["opened by 1", "taken down", "closed"]
    assert offered(model, 0) == ["count"]
    assert "You sit at a bench." in model.requests()[0].json["instructions"]


async def test_the_workspace_of_a_job_that_failed_is_taken_down(model: Simulator) -> None:
    bench = Bench()
    model.script(error_reply(500))
    async with serving_jobs(model.base_url, workspaces={"deep_work": bench.open}) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "provider_unavailable")
    assert bench.done == ["opened by 1", "closed"]


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_job_whose_workspace_is_lost_ends_with_an_honest_notice(
    model: Simulator, calls: int
) -> None:
    """Nobody else has it: left alone it would be at work until its deadline."""
    bench = Bench()

    def lose(_: Invocation[Nothing]) -> None:
        bench.is_there = False

    bench.counter.before = lose
    model.script(tool_calls(*((f"c{n}", "count", "{}") for n in range(calls))))
    async with serving_jobs(model.base_url, workspaces={"deep_work": bench.open}) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "workspace_failed")
    assert (len(bench.counter.calls), model.posts) == (1, 1)
    states = [call.state for call in await steps_of(job)]
    assert states == ["succeeded", "cancelled"][:calls]
    assert "working copy" in await told(job)
    assert bench.done == ["opened by 1", "closed"]


@pytest.mark.parametrize(
    ("found", "code"),
    [(WorkspaceLost, "workspace_failed"), (StaleFence, "internal_error")],
    ids=["by its place", "by whatever else"],
)
async def test_a_job_that_seems_to_be_anothers_ends_where_nobody_else_has_claimed_it(
    model: Simulator, found: type[Exception], code: str
) -> None:
    async def taken(_job: WorkJob, _fence: Fence) -> Bench:
        raise found

    async with serving_jobs(model.base_url, workspaces={"deep_work": taken}) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", code)
    assert model.posts == 0


async def test_a_server_of_a_buried_runtime_writes_nothing_though_its_row_was_to_stop_before(
    model: Simulator,
) -> None:
    """Recovery settles the row: until then the database would still take its end."""
    servers: list[JobServer] = []

    async def buried(_job: WorkJob, _fence: Fence) -> Bench:
        servers[0].release()
        servers[0].abandon()
        raise StaleFence

    async with serving_jobs(model.base_url, workspaces={"deep_work": buried}) as runtime:
        job = await runtime.ask()
        servers.append(runtime.server(job.pk))
        assert await servers[0].run() is None
    await in_thread(job.refresh_from_db)
    assert (job.state, job.generation) == ("running", 1)


async def test_a_worker_whose_place_a_newer_claim_took_writes_nothing(
    model: Simulator,
) -> None:
    """What the machine says first the database says as well."""
    bench = Bench()
    model.script(counting(1))
    async with serving_jobs(model.base_url, workspaces={"deep_work": bench.open}) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)

        def overtake(_: Invocation[Nothing]) -> None:
            assert server.fence is not None
            release_own_jobs([server.fence])
            bench.is_there = False

        bench.counter.before = overtake
        assert await server.run() is None
    await in_thread(job.refresh_from_db)
    assert (job.state, job.attempts, model.posts) == ("queued", 1, 1)
    assert not await in_thread(JobReport.objects.exists)


async def test_the_workspace_of_a_job_that_is_given_back_stays(model: Simulator) -> None:
    bench = Bench()
    model.script(replace(counting(1), hold_head="thinking"))
    async with serving_jobs(model.base_url, workspaces={"deep_work": bench.open}) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "thinking")
        server.wind_up()
        model.release("thinking")
        await task
    await in_thread(job.refresh_from_db)
    assert job.state == "queued"
    assert bench.done == ["opened by 1", "released"]


async def test_a_job_without_a_place_to_work_fails_with_the_reason(model: Simulator) -> None:
    async def refuse(_job: WorkJob, _fence: Fence) -> Any:
        raise Refused(ErrorCode.NOT_A_REPOSITORY)

    async with serving_jobs(model.base_url, workspaces={"deep_work": refuse}) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "not_a_repository")
    assert ErrorCode.NOT_A_REPOSITORY.label in await told(job)
    assert model.posts == 0
