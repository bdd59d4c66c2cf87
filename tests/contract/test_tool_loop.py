"""The tool-continuation protocol: persisted before it happens, run at most once, bounded.

Behaviours C1 to C10 and D1 to D5, as far as they are about serving a turn.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from recovery.executor import in_thread
from tests.contract.counting import Counter, Nothing, Numbered, outputs
from tests.simulators.client import Simulator
from tests.simulators.replies import hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, tool_calls
from tests.support.serving import provider_steps, receipt_of, serving, tool_steps
from tests.support.turns import text_of
from turns import bounds
from turns.models import Conversation, ToolStep
from turns.tools.registry import Effect, Invocation, Tool

pytestmark = pytest.mark.django_db(transaction=True)


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
