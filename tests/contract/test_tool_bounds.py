"""The tool-continuation protocol has bounds, and ends where a person or the model ends it.

Behaviours C1 to C10 and D1 to D5, as far as they are about the end of serving a turn.
"""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from recovery.executor import in_thread
from tests.contract.counting import Counter, Nothing, offered
from tests.simulators.client import Simulator
from tests.simulators.replies import send
from tests.simulators.responses_wire import Stream, answer, frames_reply, tool_calls
from tests.support.serving import provider_steps, serving, tool_steps
from tests.support.turns import text_of
from turns.models import Turn
from turns.requests import REPORT_INSTRUCTIONS
from turns.tools.registry import Effect, Invocation, Tool
from turns.transitions import request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


async def test_the_seventeenth_call_is_stored_failed_and_one_last_request_asks_for_a_report(
    model: Simulator,
) -> None:
    """behaviour C4"""
    counter = Counter(Effect.REVERSIBLE)
    for number in range(1, 18):
        model.script(
            tool_calls(
                (f"call_{number}", "count", json.dumps({"n": number})),
                response_id=f"resp_{number}",
            )
        )
    model.script(answer("That is as far as I got.", response_id="resp_18"))
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "completed"
    assert await in_thread(text_of, turn) == "That is as far as I got."
    assert [call.arguments.n for call in counter.calls] == list(range(1, 17))
    steps = await tool_steps(turn)
    assert [step.state for step in steps] == ["succeeded"] * 16 + ["failed"]
    assert steps[-1].error_code == "tool_call_limit_reached"
    assert steps[-1].started_at is None
    assert model.posts == 18
    assert "count" in offered(model, 16)
    assert offered(model, 17) == []
    asked = [request.json["instructions"] for request in model.requests()]
    assert [REPORT_INSTRUCTIONS in instructions for instructions in asked] == [
        *[False] * 17, True
    ]  # fmt: skip


async def test_a_model_that_calls_tools_in_its_last_request_ends_the_turn(
    model: Simulator,
) -> None:
    counter = Counter()
    model.script(
        tool_calls(*((f"a{n}", "count", json.dumps({"n": n})) for n in range(17))),
        tool_calls(("b", "count", '{"n": 99}'), text="One more.", response_id="resp_2"),
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, turn.error_code) == ("failed", "tool_call_limit_reached")
    assert await in_thread(text_of, turn) == "One more."
    assert len(counter.calls) == 16
    assert model.posts == 2


async def test_past_the_hard_stop_nothing_of_the_response_is_stored_or_run(
    model: Simulator,
) -> None:
    counter = Counter()
    model.script(tool_calls(*((f"a{n}", "count", json.dumps({"n": n})) for n in range(33))))
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, turn.error_code) == ("failed", "tool_call_limit_reached")
    assert counter.calls == []
    assert await tool_steps(turn) == []
    (step,) = await provider_steps(turn)
    assert (step.state, step.response_id) == ("failed", "resp_1")
    assert step.usage is not None
    assert step.usage["total_tokens"] == 14
    assert model.posts == 1


async def test_the_last_provider_step_allowed_offers_no_tools(model: Simulator) -> None:
    # one call id with one identity: nothing runs again, the loop is bounded by its requests
    for number in range(40):
        model.script(tool_calls(("same", "count", '{"n": 1}'), response_id=f"resp_{number}"))
    counter = Counter()
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, turn.error_code) == ("failed", "provider_step_limit_reached")
    assert len(counter.calls) == 1
    assert model.posts == 32
    assert offered(model, 31) == []
    assert "count" in offered(model, 30)


async def test_one_call_id_for_two_calls_fails_the_turn_and_runs_neither_again(
    model: Simulator,
) -> None:
    """behaviour D1"""
    counter = Counter()
    model.script(
        tool_calls(("call_1", "count", '{"n": 1}')),
        tool_calls(("call_1", "count", '{"n": 2}'), response_id="resp_2"),
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, turn.error_code) == ("failed", "provider_call_id_conflict")
    assert [call.arguments.n for call in counter.calls] == [1]
    assert [step.state for step in await tool_steps(turn)] == ["succeeded"]


async def test_a_cancel_ends_a_turn_that_is_blocked_inside_a_tool(model: Simulator) -> None:
    """behaviours C5, AD11"""
    entered, release = threading.Event(), threading.Event()

    def block(_: Invocation[Nothing]) -> str:
        entered.set()
        release.wait(60)
        return "too late"

    blocking = Tool(
        name="block",
        description="Block.",
        arguments=Nothing,
        effect=Effect.READ,
        call=block,
        runs="in_own_thread",
    )
    model.script(tool_calls(("call_1", "block", "{}"), text="Wait. "))
    try:
        async with serving(model.base_url, blocking) as runtime:
            turn = await runtime.ask()
            server = runtime.server(turn.pk)
            task = asyncio.create_task(server.run())
            await asyncio.to_thread(entered.wait, 30)
            owner_id = await in_thread(lambda: turn.conversation.owner_id)
            await in_thread(request_cancel, owner_id, turn.pk)
            server.cancel()
            assert await task is None
    finally:
        release.set()
    turn = await in_thread(lambda: Turn.objects.get(pk=turn.pk))
    assert (turn.state, turn.error_code) == ("cancelled", "cancelled")
    assert await in_thread(text_of, turn) == "Wait. "
    (step,) = await tool_steps(turn)
    assert (step.state, step.error_code) == ("cancelled", "cancelled")
    assert model.posts == 1


async def test_after_a_cancel_no_requested_call_starts(model: Simulator) -> None:
    counter = Counter(Effect.EXTERNAL)
    cancelled = asyncio.Event()

    async def first(invocation: Invocation[Nothing]) -> str:
        await in_thread(request_cancel, invocation.owner_id, turn.pk)
        cancelled.set()
        return "cancelled meanwhile"

    cancelling = Tool(
        name="first",
        description="Cancel.",
        arguments=Nothing,
        effect=Effect.REVERSIBLE,
        call=first,
    )
    model.script(tool_calls(("call_1", "first", "{}"), ("call_2", "count", '{"n": 1}')))
    async with serving(model.base_url, cancelling, counter.tool) as runtime:
        turn = await runtime.ask()
        turn = await runtime.serve(turn)
    assert cancelled.is_set()
    assert (turn.state, turn.error_code) == ("cancelled", "cancelled")
    assert counter.calls == []
    first_step, second_step = await tool_steps(turn)
    # what was done is kept, what was not is said
    assert (first_step.state, first_step.result) == ("succeeded", "cancelled meanwhile")
    assert (second_step.state, second_step.error_code) == ("cancelled", "not_started")
    assert model.posts == 1


@pytest.mark.parametrize(
    ("spoken", "state", "code"),
    [("Noted, Marguerite.", "completed", ""), ("", "failed", "empty_output")],
)
async def test_a_last_response_may_be_empty_if_the_answer_came_before_the_call(
    model: Simulator, spoken: str, state: str, code: str
) -> None:
    counter = Counter()
    model.script(
        tool_calls(("call_1", "count", '{"n": 1}'), text=spoken), answer(response_id="resp_2")
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, turn.error_code) == (state, code)
    assert await in_thread(text_of, turn) == spoken


async def test_a_response_that_contradicts_itself_has_its_calls_not_executed(
    model: Simulator,
) -> None:
    counter = Counter()
    stream = Stream()
    frames = [*stream.opening(), *stream.call("count", '{"n": 1}')]
    stream.output = [{**stream.output[0], "arguments": '{"n": 2}'}]
    model.script(frames_reply(send(*frames, stream.terminal())))
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "failed"
    assert turn.error_code == "provider_protocol"
    assert counter.calls == []
