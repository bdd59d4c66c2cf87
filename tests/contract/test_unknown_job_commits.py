"""A connection lost while a job's transition commits: read back, and nothing happens twice.

These transitions are one statement each, and so their own transaction.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from pytest_django.fixtures import Settings

from recovery.executor import in_thread
from tests.contract.test_unknown_commits import lossy, reopen_connections
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.job_serving import provider_steps_of, serving_jobs, steps_of, told
from tests.support.jobs import place_for, post_call, require_job_terminal
from tests.support.late_commits import let_arrive_once_asked_again
from tests.support.pgproxy import Proxy, When
from tests.support.rivals import Gate, gate

__all__ = ["lossy"]

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass(frozen=True)
class Transition:
    """One transition of a job with two calls: a text that only its statement has, and which of
    those it is."""

    name: str
    text: bytes
    nth: int = 1


# in the order in which the job commits them
TRANSITIONS = [
    Transition("claim", b"claim_token = held.token"),
    Transition("first provider step", b"INSERT INTO work_workproviderstep"),
    Transition("provider step completed, calls requested", b"completed AS ("),
    Transition("first call started", b"SET state = 'running', started_at"),
    Transition("its outcome, second call started", b"SET state = 'running', started_at", 2),
    Transition("second call's outcome", b"result_digest = ", 2),
    Transition("second provider step", b"INSERT INTO work_workproviderstep", 2),
    Transition("answer", b"completed AS (", 2),
    Transition("report", b"INSERT INTO work_jobreport ("),
    Transition("end", b"ended_revision = held"),
]


@pytest.fixture
def _told_by_text(settings: Settings) -> None:
    """Have each statement sent with its text: prepared ones are known by a number."""
    settings.DATABASE_POOLED = True


@pytest.mark.usefixtures("_told_by_text")
@pytest.mark.parametrize("when", ["before", "after", "late"])
@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda transition: transition.name)
async def test_a_transition_of_unknown_outcome_is_settled_and_no_effect_is_repeated(
    *,
    lossy: Proxy,
    database_url: str,
    model: Simulator,
    sink: Simulator,
    transition: Transition,
    when: When,
) -> None:
    await reopen_connections()
    conversation = await in_thread(place_for, sink)
    calls = (post_call(sink, "call_1", 1), post_call(sink, "call_2", 2))
    model.script(tool_calls(*calls), answer("Posted.", response_id="resp_2"))
    gates: list[Gate] = []

    with ExitStack() as stack:

        def hold() -> None:
            row = "SELECT FROM turns_conversation WHERE id = %s FOR NO KEY UPDATE"
            gates.append(stack.enter_context(gate(database_url, row, conversation.pk)))

        try:
            async with serving_jobs(model.base_url) as runtime:
                job = await runtime.ask("Post it.", conversation)
                lossy.arm(transition.nth, when, statement=transition.text, hold=hold)
                if when == "late":
                    arrival = asyncio.to_thread(let_arrive_once_asked_again, lossy, gates)
                    job, _ = await asyncio.gather(runtime.serve(job), arrival)
                else:
                    job = await runtime.serve(job)
            assert lossy.lost.is_set()
            assert (job.state, job.generation, job.attempts) == ("completed", 1, 1)
            await in_thread(require_job_terminal, job)
            assert await told(job) == "Posted."
            assert [step.state for step in await steps_of(job)] == ["succeeded"] * 2
            assert [step.state for step in await provider_steps_of(job)] == ["completed"] * 2
            assert model.posts == 2
            assert list(sink.posts_per_key().values()) == [1, 1]
        finally:
            await reopen_connections()
