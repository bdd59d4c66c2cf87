"""What a turn does with jobs: once for each call, for its own person, while the turn lasts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from recovery.models import ReleaseSwitch
from recovery.switches import set_release
from tests.factories import (
    ComputerFactory,
    ConversationFactory,
    ToolStepFactory,
    WorkJobFactory,
    WorkStepFactory,
    fence_of,
)
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.scripted import *  # noqa: F403
from tests.support.serving import serving, tool_steps
from turns.models import ToolStep
from turns.tools import registry
from turns.tools.registry import Effect, Invocation
from turns.tools.runner import Outcome, invoke
from turns.transitions import request_cancel as cancel_turn
from work import bounds
from work.models import WorkJob
from work.tools import JOB_TOOL_NAMES, TOOLS
from work.transitions import append_report, finish_job

pytestmark = pytest.mark.django_db(transaction=True)


class Asking:
    """A running call of somebody's turn."""

    def __init__(self, step: ToolStep) -> None:
        self.step = step
        self.conversation = step.turn.conversation
        self.person = self.conversation.owner

    def again(self) -> Asking:
        """Return another call of the same response."""
        step = self.step
        return Asking(
            ToolStepFactory.create(
                running=True, turn=step.turn, provider_step=step.provider_step
            )
        )

    async def call(
        self, name: str, *, key: UUID | None = None, **arguments: Any
    ) -> tuple[Outcome, Any]:
        """Return the outcome of calling a tool, and its result where that is JSON."""
        tool = registry.get(name)
        assert tool is not None
        invocation: Invocation[Any] = Invocation(
            self.person.pk,
            self.conversation.pk,
            1,
            key or self.step.invocation_key,
            tool.parse(json.dumps(arguments)),
        )
        outcome = await invoke(tool, invocation)
        is_json = outcome.result.startswith("{")
        return outcome, json.loads(outcome.result) if is_json else None


@pytest.fixture
def asking() -> Asking:
    return Asking(ToolStepFactory.create(running=True, name="start_job"))


async def made(make: Callable[..., Any], **values: Any) -> Any:
    return await in_thread(lambda: make(**values))


async def jobs() -> list[WorkJob]:
    return await in_thread(lambda: list(WorkJob.objects.order_by("pk")))


def test_every_tool_is_offered_to_turns_and_kept_from_jobs() -> None:
    """failure: a job that delegates again"""
    assert [registry.get(tool.name) for tool in TOOLS] == list(TOOLS)
    effects = {tool.name: tool.effect for tool in TOOLS}
    assert effects == {
        "start_job": Effect.REVERSIBLE,
        "list_jobs": Effect.READ,
        "job_status": Effect.READ,
        "cancel_job": Effect.REVERSIBLE,
    }
    assert effects.keys() == JOB_TOOL_NAMES


# --- start_job ---


async def test_a_job_starts_once_however_often_its_call_is_delivered(asking: Asking) -> None:
    asked: dict[str, Any] = {
        "kind": "deep_work", "goal": "Find the cause.", "context": "Since Monday.",
    }  # fmt: skip
    first, told = await asking.call("start_job", **asked)
    again, repeated = await asking.call("start_job", **asked)
    assert (first.state, again.state) == ("succeeded", "succeeded")
    (job,) = await jobs()
    assert told == repeated == {"disposition": "started", "job_id": str(job.pk)}
    assert (job.person_id, job.conversation_id) == (asking.person.pk, asking.conversation.pk)
    assert (job.goal, job.context, job.state) == ("Find the cause.", "Since Monday.", "queued")


async def test_a_call_whose_turn_was_stopped_starts_nothing(asking: Asking) -> None:
    await in_thread(cancel_turn, asking.person.pk, asking.step.turn_id)
    await in_thread(
        lambda: ToolStep.objects.filter(pk=asking.step.pk).update(
            state="cancelled", error_code="cancelled", finished_at=asking.step.started_at
        )
    )
    outcome, _ = await asking.call("start_job", kind="deep_work", goal="x")
    assert (outcome.state, outcome.error_code) == ("cancelled", "cancelled")
    unknown, _ = await asking.call("start_job", key=uuid4(), kind="deep_work", goal="x")
    assert unknown.state == "cancelled"
    assert await jobs() == []


async def test_a_coding_job_names_its_computer_or_has_the_only_one(asking: Asking) -> None:
    outcome, told = await asking.call("start_job", kind="coding", goal="Fix it.")
    assert (outcome.state, outcome.error_code) == ("failed", "computer_required")
    assert told["computers"] == "none is set up for jobs"

    laptop = await made(ComputerFactory, person=asking.person, name="laptop")
    await made(ComputerFactory, person=asking.person, revoked=True)
    await made(ComputerFactory)  # somebody else's
    outcome, _ = await asking.call("start_job", kind="coding", goal="Fix it.")
    assert outcome.state == "succeeded"
    (job,) = await jobs()
    assert (job.computer_id, job.cwd) == (laptop.pk, "/srv/projects")

    await made(ComputerFactory, person=asking.person, name="Server", roots=["/a", "/b"])
    other = await in_thread(asking.again)
    outcome, told = await other.call("start_job", kind="coding", goal="Fix it.")
    assert outcome.error_code == "computer_required"
    assert told["computers"] == {"laptop": ["/srv/projects"], "Server": ["/a", "/b"]}
    outcome, told = await other.call(
        "start_job", kind="coding", goal="Fix it.", computer="server", directory="/etc"
    )
    assert (outcome.state, outcome.error_code) == ("refused", "outside_roots")
    assert told["problem"] == ErrorCode.OUTSIDE_ROOTS.label
    outcome, _ = await other.call("start_job", kind="coding", goal="Fix it.", computer="moon")
    assert outcome.error_code == "not_found"
    outcome, _ = await other.call(
        "start_job", kind="coding", goal="Fix it.", computer="server", directory="/b/sub"
    )
    assert outcome.state == "succeeded"
    assert [job.cwd for job in await jobs()] == ["/srv/projects", "/b/sub"]


@pytest.mark.parametrize(
    ("asked", "code", "state"),
    [
        ({"goal": " "}, "empty_goal", "failed"),
        ({"goal": "é" * bounds.GOAL_MAX_BYTES}, "goal_too_long", "failed"),
        ({"context": "é" * bounds.CONTEXT_MAX_BYTES}, "context_too_long", "failed"),
    ],
)
async def test_what_cannot_be_a_job_is_told_with_its_code(
    asking: Asking, asked: dict[str, Any], code: str, state: str
) -> None:
    outcome, _ = await asking.call("start_job", **{"kind": "deep_work", "goal": "x", **asked})
    assert (outcome.error_code, outcome.state) == (code, state)
    assert outcome.result == ErrorCode(code).label
    assert await jobs() == []


async def test_too_many_jobs_and_a_pause_are_told_apart(asking: Asking) -> None:
    for _ in range(bounds.ACTIVE_JOBS_PER_OWNER):
        await made(WorkJobFactory, person=asking.person)
    outcome, _ = await asking.call("start_job", kind="deep_work", goal="x")
    assert (outcome.state, outcome.error_code) == ("refused", "job_limit_reached")
    await in_thread(set_release, "work", ReleaseSwitch.State.DISABLED)
    outcome, _ = await asking.call("start_job", kind="deep_work", goal="x")
    assert (outcome.state, outcome.error_code) == ("unavailable", "paused")


# --- looking and cancelling ---


async def test_jobs_are_listed_newest_first_and_nobody_elses(asking: Asking) -> None:
    here = await made(
        WorkJobFactory, person=asking.person, conversation=asking.conversation, failed=True
    )
    elsewhere = await made(ConversationFactory, owner=asking.person)
    there = await made(WorkJobFactory, person=asking.person, conversation=elsewhere)
    await made(WorkJobFactory)
    _, told = await asking.call("list_jobs")
    assert told["truncated"] is False
    assert [(job["job_id"], job["here"], job["state"]) for job in told["jobs"]] == [
        (str(there.pk), False, "queued"),
        (str(here.pk), True, "failed"),
    ]
    assert told["jobs"][1]["why"] == ErrorCode.PROVIDER_UNAVAILABLE.label


async def test_a_list_is_short_however_many_jobs_there_are(asking: Asking) -> None:
    for _ in range(25):
        await made(
            WorkJobFactory, person=asking.person, completed=True, goal="🧭" * 500, prompt="x"
        )
    outcome, told = await asking.call("list_jobs")
    assert (len(told["jobs"]), told["truncated"]) == (20, True)
    assert len(outcome.result.encode()) < 16_000


async def test_the_status_of_a_job_tells_its_last_steps_and_its_report(asking: Asking) -> None:
    job = await made(WorkJobFactory, person=asking.person, running=True)
    for _ in range(11):
        await made(WorkStepFactory, job=job, succeeded=True)
    await made(WorkStepFactory, job=job, refused=True, name="edit_file")
    _, told = await asking.call("job_status", job_id=str(job.pk))
    assert (told["state"], told["step_count"], told["report"]) == ("running", 12, None)
    assert len(told["last_steps"]) == 10
    assert told["last_steps"][-1] == {
        "name": "edit_file", "state": "refused", "error": "path_refused",
    }  # fmt: skip
    await in_thread(append_report, fence_of(job), "It was the belt.")
    await in_thread(finish_job, fence_of(job), WorkJob.State.COMPLETED)
    _, told = await asking.call("job_status", job_id=str(job.pk))
    assert (told["state"], told["report"]) == ("completed", "It was the belt.")


async def test_a_job_is_cancelled_or_asked_to_stop_or_had_ended(asking: Asking) -> None:
    waiting = await made(WorkJobFactory, person=asking.person)
    running = await made(WorkJobFactory, person=asking.person, running=True)
    _, told = await asking.call("cancel_job", job_id=str(waiting.pk))
    assert told == {"disposition": "cancelled"}
    _, told = await asking.call("cancel_job", job_id=str(waiting.pk))
    assert told == {"disposition": "had_ended", "state": "cancelled"}
    _, told = await asking.call("cancel_job", job_id=str(running.pk))
    assert told == {"disposition": "is_stopping"}
    _, listed = await asking.call("list_jobs")
    assert [job["stopping"] for job in listed["jobs"]] == [True, False]


@pytest.mark.parametrize("name", ["job_status", "cancel_job"])
async def test_a_job_of_somebody_else_is_told_like_none(asking: Asking, name: str) -> None:
    """failure H52"""
    foreign = await made(WorkJobFactory, running=True)
    told = set()
    for job_id in (str(foreign.pk), "999999", "0", "x", ""):
        outcome, _ = await asking.call(name, job_id=job_id)
        told.add((outcome.state, outcome.error_code, outcome.result))
    assert told == {("failed", "not_found", ErrorCode.NOT_FOUND.label)}
    await in_thread(foreign.refresh_from_db)
    assert foreign.cancel_requested_at is None


# --- in a whole turn ---


async def test_a_turn_starts_a_job_and_the_next_turn_knows_its_report(model: Simulator) -> None:
    goal = json.dumps({"kind": "deep_work", "goal": "Find the cause."})
    model.script(
        tool_calls(("call_1", "start_job", goal)),
        answer("It is under way.", response_id="resp_2"),
        answer("The belt.", response_id="resp_3"),
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("Find out why it squeaks."))
        (step,) = await tool_steps(turn)
        assert (turn.state, step.state) == ("completed", "succeeded")
        (job,) = await jobs()

        def work() -> None:
            claimed = WorkJobFactory.create(
                person=job.person, conversation=job.conversation, running=True
            )
            append_report(fence_of(claimed), "It was the belt.")
            finish_job(fence_of(claimed), WorkJob.State.COMPLETED)

        await in_thread(work)
        await runtime.serve(await runtime.ask("And?", job.conversation))
    assert "It was the belt." in json.dumps(model.requests()[-1].json)
