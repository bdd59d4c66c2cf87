"""A last answer that cannot be stored fails its job, with what the model had said till then."""

from __future__ import annotations

import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import WorkJobFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import Stream, frames_reply, message
from tests.support.job_serving import (
    Counter,
    counting,
    ended,
    provider_steps_of,
    serving_jobs,
    told,
)
from tests.support.scripted import *  # noqa: F403
from work import bounds

pytestmark = pytest.mark.django_db(transaction=True)


def contradicting(said: str, response_id: str) -> Reply:
    """Say something, and that something else was said, of more than a job may say."""
    stream = Stream(response_id)
    frames = [*stream.opening(), *stream.message(said)]
    stream.output[:] = [message("B" * (bounds.RESPONSE_TEXT_MAX_BYTES + 1))]
    return frames_reply(*frames, stream.terminal())


async def test_one_that_ends_by_saying_another_and_too_much_is_too_large(
    model: Simulator,
) -> None:
    model.script(contradicting("Once upon a time", "resp_1"))
    async with serving_jobs(model.base_url) as runtime:
        job = await runtime.serve(await runtime.ask())
    assert await ended(job) == ("failed", "response_too_large")
    label = ErrorCode.RESPONSE_TOO_LARGE.label
    assert await told(job) == (
        f"This job failed. {label}\n\nWhat it said last:\n\nOnce upon a time"
    )
    (step,) = await provider_steps_of(job)
    assert (step.state, step.error_code) == ("failed", "response_too_large")
    assert (step.response_id, (step.usage or {})["total_tokens"]) == ("resp_1", 14)


async def test_so_is_one_to_the_last_request_that_a_job_may_make(model: Simulator) -> None:
    model.script(counting(1), contradicting("Once upon a time", "resp_2"))
    budget = WorkJobFactory.build().budget | {"provider_steps": 2}
    async with serving_jobs(model.base_url, Counter().tool) as runtime:
        job = await in_thread(lambda: WorkJobFactory.create(budget=budget))
        job = await runtime.serve(job)
    assert await ended(job) == ("failed", "response_too_large")
    assert (await told(job)).endswith("What it said last:\n\nOnce upon a time")
