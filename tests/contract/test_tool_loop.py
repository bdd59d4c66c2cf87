"""The tool-continuation protocol: persisted before it happens, run at most once, bounded.

Behaviours C1 to C10 and D1 to D5, as far as they are about serving a turn.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from recovery.executor import in_thread
from tests.simulators.client import Simulator
from tests.simulators.replies import hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, tool_calls
from tests.support.serving import provider_steps, receipt_of, serving, tool_steps
from tests.support.turns import text_of
from turns import bounds
from turns.models import Conversation, ToolStep, Turn
from turns.requests import REPORT_INSTRUCTIONS
from turns.tools.registry import Arguments, Effect, Invocation, Tool
from turns.transitions import request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


class Nothing(Arguments):
    pass


class Numbered(Arguments):
    n: int


def outputs(model: Simulator, post: int) -> list[dict[str, Any]]:
    """Return the calls and results that request number `post` (from 0) told the model."""
    items = model.requests()[post].json["input"]
    return [item for item in items if item["type"].startswith("function_call")]


def offered(model: Simulator, post: int) -> list[str]:
    """Return the names of the tools that request number `post` offered."""
    return [tool["name"] for tool in model.requests()[post].json.get("tools", [])]


class Counter:
    """A tool that counts how often it ran, and with whose scope."""

    def __init__(self, effect: ToolStep.Effect = Effect.READ) -> None:
        self.calls: list[Invocation[Numbered]] = []
        self.tool: Tool[Numbered] = Tool(
            name="count",
            description="Count.",
            arguments=Numbered,
            effect=effect,
            call=self.call,
        )

    async def call(self, invocation: Invocation[Numbered]) -> str:
        self.calls.append(invocation)
        return f"counted {invocation.arguments.n}"


async def test_a_tool_runs_once_in_the_scope_of_its_conversation_and_the_answer_follows(
    model: Simulator,
) -> None:
    """behaviour C1"""
    counter = Counter()
    model.script(
        tool_calls(("call_1", "count", '{ "n": 7 }'), response_id="resp_1"),
        answer("Seven", " it is.", response_id="resp_2"),
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert (turn.state, await in_thread(text_of, turn)) == ("completed", "Seven it is.")
    (invocation,) = counter.calls
    owner_id = await in_thread(lambda: turn.conversation.owner_id)
    assert (invocation.owner_id, invocation.conversation_id) == (owner_id, turn.conversation_id)
    assert invocation.before_message_id == turn.user_message_id
    (step,) = await tool_steps(turn)
    assert (step.state, step.error_code, step.result) == ("succeeded", "", "counted 7")
    assert step.arguments == '{ "n": 7 }'
    assert step.invocation_key == invocation.key
    first, second = await provider_steps(turn)
    assert [first.response_id, second.response_id] == ["resp_1", "resp_2"]
    assert [first.state, second.state] == ["completed", "completed"]
    receipt = await receipt_of(turn)
    assert receipt.state == "completed"
    assert receipt.usage is not None
    assert receipt.usage["total_tokens"] == 28  # both responses reported 14
    assert [item["type"] for item in outputs(model, 1)] == [
        "function_call",
        "function_call_output",
    ]
    assert outputs(model, 1)[1]["output"] == "counted 7"
    assert model.posts == 2


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


async def test_reading_calls_run_side_by_side_and_writing_ones_one_by_one(
    model: Simulator,
) -> None:
    together = asyncio.Barrier(3)
    order: list[str] = []

    async def look(_: Invocation[Numbered]) -> str:
        await together.wait()  # returns only when three are inside
        return "seen"

    async def write(invocation: Invocation[Numbered]) -> str:
        order.append(f"in {invocation.arguments.n}")
        await asyncio.sleep(0)
        order.append(f"out {invocation.arguments.n}")
        return "written"

    described: dict[str, Any] = {"description": "A tool.", "arguments": Numbered}
    reading = Tool(name="look", effect=Effect.READ, call=look, **described)
    writing = Tool(name="write", effect=Effect.EXTERNAL, call=write, **described)
    calls = [("look", 1), ("look", 2), ("look", 3), ("write", 4), ("write", 5)]
    model.script(
        tool_calls(*((f"c{n}", name, json.dumps({"n": n})) for name, n in calls)),
        answer("Done.", response_id="resp_2"),
    )
    async with serving(model.base_url, reading, writing) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "completed"
    assert order == ["in 4", "out 4", "in 5", "out 5"]
    told = outputs(model, 1)
    assert [item["call_id"] for item in told if item["type"] == "function_call"] == [
        "c1", "c2", "c3", "c4", "c5",
    ]  # fmt: skip
    assert len({item["call_id"] for item in told}) == 5


async def test_each_commit_between_calls_stores_what_came_and_starts_what_follows(
    model: Simulator,
) -> None:
    """Calls one by one and side by side, by the revision that each transaction raises."""
    seen: list[int] = []

    async def look(invocation: Invocation[Numbered]) -> str:
        revision = await in_thread(
            Conversation.objects.values_list("revision", flat=True).get,
            pk=invocation.conversation_id,
        )
        seen.append(revision)
        return str(revision)

    described: dict[str, Any] = {"description": "A tool.", "arguments": Numbered, "call": look}
    reading = Tool(name="look", effect=Effect.READ, **described)
    writing = Tool(name="write", effect=Effect.EXTERNAL, **described)
    calls = ["look", "write", "write", "look"]
    model.script(
        tool_calls(*((f"c{n}", name, json.dumps({"n": n})) for n, name in enumerate(calls))),
        answer("Done.", response_id="resp_2"),
    )
    async with serving(model.base_url, reading, writing) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "completed"
    assert seen == list(range(seen[0], seen[0] + 4))


async def test_a_slow_call_does_not_hold_back_what_another_found(model: Simulator) -> None:
    async def look(invocation: Invocation[Numbered]) -> str:
        while invocation.arguments.n == 0:
            found = ToolStep.objects.filter(result="found")
            if await in_thread(found.count) == 2:
                break
        return "found"

    reading = Tool(
        name="look", description="Look.", arguments=Numbered, effect=Effect.READ, call=look
    )
    model.script(
        tool_calls(*((f"c{n}", "look", json.dumps({"n": n})) for n in range(3))),
        answer("Done.", response_id="resp_2"),
    )
    async with serving(model.base_url, reading) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "completed"
    steps = await tool_steps(turn)
    assert [step.result for step in steps] == ["found"] * 3
    assert len({step.started_at for step in steps}) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "state", "code"),
    [
        ("nothing_like_it", "{}", "unavailable", "unknown_tool"),
        ("count", "{", "failed", "invalid_tool_arguments"),
        ("count", '{"n": "many"}', "failed", "invalid_tool_arguments"),
        ("count", '{"n": 1, "n": 2}', "failed", "invalid_tool_arguments"),
        ("count", '{"n": 1, "more": true}', "failed", "invalid_tool_arguments"),
    ],
)
async def test_a_call_that_cannot_run_is_stored_with_its_reason_and_told_to_the_model(
    model: Simulator, name: str, arguments: str, state: str, code: str
) -> None:
    counter = Counter()
    model.script(
        tool_calls(("call_1", name, arguments)), answer("I see.", response_id="resp_2")
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert turn.state == "completed"
    assert counter.calls == []
    (step,) = await tool_steps(turn)
    assert (step.state, step.error_code, step.arguments) == (state, code, arguments)
    assert step.started_at is None
    told = [item for item in outputs(model, 1) if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in told] == ["call_1"]
    assert told[0]["output"]


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


async def test_the_next_request_is_built_from_committed_rows_alone(model: Simulator) -> None:
    counter = Counter()

    async def ramble(_: Invocation[Nothing]) -> str:
        # What the process holds is not what the model is told: the row is, and the row is cut.
        return "x" * 200_000

    rambling = Tool(
        name="ramble",
        description="Ramble.",
        arguments=Nothing,
        effect=Effect.READ,
        call=ramble,
    )
    model.script(
        tool_calls(("call_1", "ramble", "{}"), text="Checking. "),
        tool_calls(("call_2", "count", '{"n": 1}'), response_id="resp_2"),
        answer("Done.", response_id="resp_3"),
    )
    async with serving(model.base_url, rambling, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask("What is it?"))
    assert turn.state == "completed"
    told = model.requests()[2].json["input"]
    assert [item["type"] for item in told] == [
        "message",
        "message",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
    ]
    assert told[1]["content"][0]["text"] == "Checking. "
    steps = await tool_steps(turn)
    results = [item["output"] for item in told if item["type"] == "function_call_output"]
    assert results == [step.result for step in steps]
    assert steps[0].result_bytes == 200_000
    assert len(results[0].encode()) <= bounds.TOOL_RESULT_MAX_BYTES
    assert "200000 bytes" in results[0]


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


async def test_a_gate_in_the_second_response_shows_the_first_text_meanwhile(
    model: Simulator,
) -> None:
    counter = Counter()
    stream = Stream("resp_2")
    frames = [*stream.opening(), *stream.message("Seven.")]
    model.script(
        tool_calls(("call_1", "count", '{"n": 7}'), text="Let me count. "),
        frames_reply(send(*frames[:4]), hold("second"), send(*frames[4:], stream.terminal())),
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.ask()
        task = asyncio.create_task(runtime.server(turn.pk).run())
        await asyncio.to_thread(model.wait_for_gate, "second")
        assert await in_thread(text_of, turn) == "Let me count. "
        model.release("second")
        await task
    assert await in_thread(text_of, turn) == "Let me count. Seven."
