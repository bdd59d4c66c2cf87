"""A claim goes on from what the rows hold, with what is left of the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from recovery.errors import ErrorCode, Refused
from recovery.executor import in_thread
from recovery.fences import Fence
from tests.factories import (
    JobReportFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
    fence_of,
)
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.job_serving import (
    Counter,
    counting,
    ended,
    offered,
    provider_steps_of,
    serving_jobs,
    steps_of,
    told,
)
from tests.support.scripted import *  # noqa: F403
from turns.requests import REPORT_INSTRUCTIONS
from work.models import JobReport, WorkJob
from work.transitions import release_own_jobs
from work.workspaces import Workspace

pytestmark = pytest.mark.django_db(transaction=True)


async def with_budget(**budget: int) -> WorkJob:
    """Return a queued job with a budget of its own, as admission would fix it."""

    def admit() -> WorkJob:
        job = WorkJobFactory.build()
        return WorkJobFactory.create(budget={**job.budget, **budget})

    return await in_thread(admit)


async def test_a_job_whose_model_asked_for_an_earlier_call_again_has_not_answered(
    model: Simulator,
) -> None:
    call = ("call_1", "count", "{}")
    model.script(
        tool_calls(call, text="Let me look.", response_id="resp_1"),
        tool_calls(call, text="Once more.", response_id="resp_2", hold_head="second"),
        answer("It is seven.", response_id="resp_3"),
    )
    counter = Counter()
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.ask()
        server = runtime.server(job.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "second")
        server.wind_up()
        model.release("second")
        await task
        await in_thread(job.refresh_from_db)
        assert (job.state, await said_by(job)) == ("queued", ["Let me look.", "Once more."])
        job = await runtime.serve(job)
    assert await ended(job) == ("completed", "")
    assert (await told(job), model.posts, len(counter.calls)) == ("It is seven.", 3, 1)


async def said_by(job: WorkJob) -> list[str]:
    return [step.text for step in await provider_steps_of(job)]


async def test_past_its_calls_a_job_is_asked_for_a_report_and_has_used_up_its_budget(
    model: Simulator,
) -> None:
    counter = Counter()
    model.script(
        *(counting(n) for n in range(1, 4)),
        answer("Two of three.", response_id="resp_4"),
    )
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await with_budget(tool_calls=2))
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert len(counter.calls) == 2
    assert [call.error_code for call in await steps_of(job)] == [
        "",
        "",
        "tool_call_limit_reached",
    ]
    text = await told(job)
    assert "used up" in text
    assert text.endswith("Two of three.")
    assert model.posts == 4
    assert offered(model, 3) == []
    instructions = [request.json["instructions"] for request in model.requests()]
    assert [REPORT_INSTRUCTIONS in each for each in instructions] == [False] * 3 + [True]


async def test_the_last_request_a_job_is_allowed_asks_for_a_report(model: Simulator) -> None:
    model.script(counting(1), counting(2), answer("So far.", response_id="resp_3"))
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await runtime.serve(await with_budget(provider_steps=3))
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert (await told(job)).endswith("So far.")
    assert (model.posts, offered(model, 2)) == (3, [])
    assert "count" in offered(model, 1)


async def test_a_model_that_calls_tools_in_its_last_request_has_used_up_the_budget(
    model: Simulator,
) -> None:
    counter = Counter()
    model.script(counting(1), counting(2, text="One more. "))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await with_budget(provider_steps=2))
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert (await told(job)).endswith("One more.")
    assert (len(counter.calls), model.posts) == (1, 2)


async def test_past_the_hard_stop_nothing_of_the_response_is_run(model: Simulator) -> None:
    counter = Counter()
    model.script(tool_calls(*((f"a{n}", "count", "{}") for n in range(5)), text="All. "))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await with_budget(tool_calls=2, tool_calls_hard_stop=4))
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert (counter.calls, await steps_of(job)) == ([], [])
    assert (await told(job)).endswith("All.")
    assert model.posts == 1


async def released_with(build: Callable[[WorkJob], object], **job: Any) -> WorkJob:
    """Return a job that another worker has worked on and given back."""

    def create() -> WorkJob:
        made = WorkJobFactory.create(running=True, **job)
        build(made)
        assert release_own_jobs([fence_of(made)]) == [made.pk]
        made.refresh_from_db()
        return made

    return await in_thread(create)


async def test_an_adopter_goes_on_with_the_budget_that_is_left(model: Simulator) -> None:
    """Two calls and three requests were made before; the budget counts them all."""

    def build(job: WorkJob) -> None:
        for _ in (1, 2):
            step = WorkProviderStepFactory.create(job=job, completed=True, offers_tools=True)
            WorkStepFactory.create(job=job, provider_step=step, succeeded=True)
        WorkProviderStepFactory.create(job=job, interrupted=True, offers_tools=True)

    budget = WorkJobFactory.build().budget | {"tool_calls": 3, "provider_steps": 6}
    counter = Counter()
    model.script(counting(4), counting(5), answer("That is all.", response_id="resp_6"))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await released_with(build, budget=budget)
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert len(counter.calls) == 1
    assert [step.sequence for step in await provider_steps_of(job)] == [1, 2, 3, 4, 5, 6]
    assert model.posts == 3
    assert offered(model, 2) == []


async def test_an_adopter_knows_its_last_request_by_those_of_all_workers(
    model: Simulator,
) -> None:
    def build(job: WorkJob) -> None:
        for _ in range(3):
            WorkProviderStepFactory.create(job=job, interrupted=True, offers_tools=True)

    budget = WorkJobFactory.build().budget | {"provider_steps": 5}
    model.script(counting(4), answer("So far.", response_id="resp_5"))
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await released_with(build, budget=budget)
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert (await told(job)).endswith("So far.")
    assert model.posts == 2
    assert ("count" in offered(model, 0), offered(model, 1)) == (True, [])


async def test_an_adopter_asks_no_more_when_all_requests_were_lost(model: Simulator) -> None:
    def build(job: WorkJob) -> None:
        for _ in range(2):
            WorkProviderStepFactory.create(job=job, interrupted=True, offers_tools=True)

    budget = WorkJobFactory.build().budget | {"provider_steps": 2}
    async with serving_jobs(model.base_url) as runtime:
        job = await released_with(build, budget=budget)
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert model.posts == 0


async def test_an_adopter_starts_what_was_asked_for_before_it_asks_again(
    model: Simulator,
) -> None:
    def build(job: WorkJob) -> None:
        step = WorkProviderStepFactory.create(
            job=job, completed=True, offers_tools=True, text="Two. "
        )
        for n in (1, 2):
            WorkStepFactory.create(
                job=job, provider_step=step, name="count", arguments="{}", call_id=f"c{n}"
            )

    counter = Counter()
    model.script(answer("Both.", response_id="resp_2"))
    async with serving_jobs(model.base_url, counter.tool) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    assert len(counter.calls) == 2
    assert [call.generation for call in await steps_of(job)] == [3, 3]
    outputs = [i for i in model.requests()[0].json["input"] if "output" in i]
    assert [item["output"] for item in outputs] == ["counted", "counted"]


async def test_a_call_whose_tool_is_gone_ends_unavailable(model: Simulator) -> None:
    def build(job: WorkJob) -> None:
        step = WorkProviderStepFactory.create(job=job, completed=True, offers_tools=True)
        WorkStepFactory.create(job=job, provider_step=step, name="gone", arguments="{}")

    model.script(answer("It is gone.", response_id="resp_2"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    (call,) = await steps_of(job)
    assert (call.state, call.error_code) == ("unavailable", "unknown_tool")


async def test_an_adopter_of_a_job_whose_answer_nobody_can_see_asks_on(
    model: Simulator,
) -> None:
    def build(job: WorkJob) -> None:
        WorkProviderStepFactory.create(
            job=job, completed=True, offers_tools=True, text="\u200b \ufeff"
        )

    model.script(answer("Found it.", response_id="resp_2"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    assert (await told(job), model.posts) == ("Found it.", 1)


async def test_an_adopter_of_an_answered_job_asks_nothing(model: Simulator) -> None:
    def build(job: WorkJob) -> None:
        WorkProviderStepFactory.create(
            job=job, completed=True, offers_tools=True, text="Found it."
        )

    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    assert (await told(job), model.posts) == ("Found it.", 0)


async def test_an_adopter_of_a_job_whose_last_response_was_blank_asks_again(
    model: Simulator,
) -> None:
    """It may have asked for a call that was made before, which leaves no row of its own."""

    def build(job: WorkJob) -> None:
        step = WorkProviderStepFactory.create(
            job=job, completed=True, offers_tools=True, text="Let me look."
        )
        WorkStepFactory.create(job=job, provider_step=step, succeeded=True)
        WorkProviderStepFactory.create(job=job, completed=True, offers_tools=True)

    model.script(answer("I looked.", response_id="resp_3"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    assert (await told(job), model.posts) == ("I looked.", 1)


async def test_an_adopter_of_a_job_that_answered_past_its_limit_keeps_to_that_end(
    model: Simulator,
) -> None:
    def build(job: WorkJob) -> None:
        first = WorkProviderStepFactory.create(job=job, completed=True, offers_tools=True)
        WorkStepFactory.create(
            job=job,
            provider_step=first,
            state="failed",
            error_code="tool_call_limit_reached",
            finished_at=Now(),
        )
        WorkProviderStepFactory.create(job=job, completed=True, text="That is it.")

    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("budget_exhausted", "budget_exhausted")
    assert (await told(job)).endswith("That is it.")
    assert model.posts == 0


async def test_an_adopter_of_a_reported_job_only_ends_it(model: Simulator) -> None:
    def build(job: WorkJob) -> None:
        WorkProviderStepFactory.create(job=job, completed=True, text="Found it.")
        JobReportFactory.create(job=job, text="Found it.")

    async def refuse(_job: WorkJob, _fence: Fence) -> Workspace:
        raise Refused(ErrorCode.NOT_A_REPOSITORY)

    async with serving_jobs(model.base_url, workspaces={"deep_work": refuse}) as runtime:
        job = await runtime.serve(await released_with(build))
    assert await ended(job) == ("completed", "")
    assert (await told(job), model.posts) == ("Found it.", 0)
    assert await in_thread(JobReport.objects.count) == 1


async def test_the_clock_goes_on_through_an_adoption(model: Simulator) -> None:
    model.script(stalled("Once"))
    soon = Now() + timedelta(seconds=3)  # to be claimed in
    async with serving_jobs(model.base_url) as runtime:
        job = await released_with(lambda _: None, deadline_at=soon)
        job = await runtime.serve(job)
    assert await ended(job) == ("budget_exhausted", "deadline_passed")
    assert job.finished_at is not None
    assert job.deadline_at is not None
    # and does not begin anew
    assert (job.finished_at - job.deadline_at).total_seconds() < 60
