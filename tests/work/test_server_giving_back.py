"""A worker stops amid an answer: where its job ends by that, what was said is shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from recovery.bounds import PLANNED_RELEASES
from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import WorkJobFactory, fence_of
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.job_serving import JobServing, ended, serving_jobs, told
from tests.support.jobs import report_text
from tests.support.scripted import *  # noqa: F403
from tests.support.waiting import wait_until
from work.models import JobReport, WorkJob
from work.transitions import release_own_jobs, request_cancel

pytestmark = pytest.mark.django_db(transaction=True)

LAST: dict[str, Any] = {"attempts": PLANNED_RELEASES, "planned_releases": PLANNED_RELEASES}


async def cut_short(
    runtime: JobServing, job: WorkJob, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Serve the job until its model has said a part of its answer; then its worker stops."""
    server = runtime.server(job.pk)
    task = asyncio.create_task(server.run())

    def said() -> bool:
        return server._ledger is not None and server._ledger.said == "Once upon a time"

    await asyncio.to_thread(wait_until, said, "the words are read")
    await in_thread(meanwhile)
    server.release()
    assert await task == server.fence
    await in_thread(job.refresh_from_db)


async def released(**job: Any) -> WorkJob:
    return await in_thread(lambda: WorkJobFactory.create(released=True, **job))


async def test_what_was_said_is_shown_where_a_job_is_not_given_back_again(
    model: Simulator,
) -> None:
    model.script(stalled("Once upon ", "a time", gate="never"))
    async with serving_jobs(model.base_url) as runtime:
        job = await released(**LAST)
        await cut_short(runtime, job)
    assert await ended(job) == ("interrupted", "runtime_stopped")
    assert ErrorCode.RUNTIME_STOPPED.label in await told(job)
    assert (await told(job)).endswith("What it said last:\n\nOnce upon a time")


async def test_after_a_cancel_it_is_not_shown(model: Simulator) -> None:
    model.script(stalled("Once upon ", "a time", gate="never"))
    async with serving_jobs(model.base_url) as runtime:
        job = await released(**LAST)
        await cut_short(runtime, job, lambda: request_cancel(job.person_id, job.pk))
    assert await ended(job) == ("cancelled", "cancelled")
    assert "Once upon" not in await told(job)


async def test_where_another_goes_on_nothing_is_shown(model: Simulator) -> None:
    model.script(stalled("Once upon ", "a time", gate="never"), answer("Done."))
    async with serving_jobs(model.base_url) as runtime:
        job = await released()
        await cut_short(runtime, job)
        assert (job.state, job.planned_releases) == ("queued", 1)
        assert not await in_thread(JobReport.objects.exists)
        job = await runtime.serve(job)
    assert await ended(job) == ("completed", "")
    assert await told(job) == "Done."


def test_what_was_said_until_the_time_was_over_is_shown_each_of_its_own_job() -> None:
    jobs = WorkJobFactory.create_batch(2, overdue=True)
    words = {job.pk: f"Words of {job.pk}" for job in jobs}

    assert release_own_jobs([fence_of(job) for job in jobs], said=words) == []

    for job in jobs:
        assert report_text(job).endswith(f"What it said last:\n\n{words[job.pk]}")
