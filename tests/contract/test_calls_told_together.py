"""The calls of one response go back to the model as it made them: together, then their results.

By the bytes that a scripted service was sent, over both protocols.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests import factories as make
from tests.contract.counting import Counter
from tests.simulators import chat_wire, responses_wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.support.job_serving import serving_jobs
from tests.support.serving import serving
from turns import transitions
from turns.models import ToolStep, Turn
from turns.providers.chat import ChatProvider

pytestmark = pytest.mark.django_db(transaction=True)

COUNTS = [("c1", "count", '{"n": 1}'), ("c2", "count", '{"n": 2}')]
MORE = ("c3", "count", '{"n": 3}')


def chat_script() -> list[Reply]:
    """Return two calls after a word, one more call without a word, and an answer."""
    calls = [
        frame for index, call in enumerate(COUNTS) for frame in chat_wire.call(index, *call)
    ]
    said = chat_wire.text("Counting. ")
    return [
        chat_wire.frames_reply(
            chat_wire.OPENING, said, *calls, *chat_wire.ending("tool_calls")
        ),
        chat_wire.tool_calls(MORE),
        chat_wire.answer("Done."),
    ]


def chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def tool_message(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


CHAT_TOLD = [
    {
        "role": "assistant",
        "content": "Counting. ",
        "tool_calls": [chat_call(*call) for call in COUNTS],
    },
    tool_message("c1", "counted 1"),
    tool_message("c2", "counted 2"),
    {"role": "assistant", "content": None, "tool_calls": [chat_call(*MORE)]},
    tool_message("c3", "counted 3"),
]


@pytest.mark.parametrize("effect", [ToolStep.Effect.READ, ToolStep.Effect.EXTERNAL])
async def test_a_turn_over_chat_completions(model: Simulator, effect: ToolStep.Effect) -> None:
    counter = Counter(effect)
    model.script(*chat_script())
    async with serving(model.base_url, counter.tool, adapter=ChatProvider) as runtime:
        turn = await runtime.serve(await runtime.ask())

    assert turn.state == "completed"
    system, question, *told = model.requests()[2].json["messages"]
    assert [system["role"], question["role"]] == ["system", "user"]
    assert told == CHAT_TOLD


async def test_a_job_over_chat_completions(model: Simulator) -> None:
    counter = Counter()
    model.script(*chat_script())
    async with serving_jobs(model.base_url, counter.tool, adapter=ChatProvider) as runtime:
        job = await runtime.serve(await runtime.ask())

    assert job.state == "completed"
    system, prompt, *told = model.requests()[2].json["messages"]
    assert [system["role"], prompt["role"]] == ["system", "user"]
    assert told == CHAT_TOLD


async def test_a_turn_over_the_responses_api(model: Simulator) -> None:
    counter = Counter()
    model.script(
        responses_wire.tool_calls(*COUNTS, text="Counting. "),
        responses_wire.tool_calls(MORE, response_id="resp_2"),
        responses_wire.answer("Done.", response_id="resp_3"),
    )
    async with serving(model.base_url, counter.tool) as runtime:
        turn = await runtime.serve(await runtime.ask())

    assert turn.state == "completed"
    _, said, *told = model.requests()[2].json["input"]
    assert said["content"][0]["text"] == "Counting. "
    assert [(item["type"], item["call_id"]) for item in told] == [
        ("function_call", "c1"),
        ("function_call", "c2"),
        ("function_call_output", "c1"),
        ("function_call_output", "c2"),
        ("function_call", "c3"),
        ("function_call_output", "c3"),
    ]


AGAIN = [
    {"role": "assistant", "content": None, "tool_calls": [chat_call(*MORE)]},
    tool_message("c3", "counted 3"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [chat_call("c3.2", *MORE[1:]), chat_call("c4", *MORE[1:])],
    },
    tool_message("c3.2", "counted 3"),
    tool_message("c4", "counted 3"),
]


@pytest.mark.parametrize("serve", [serving, serving_jobs])
async def test_a_call_that_is_asked_for_again_is_told_again_and_made_once(
    model: Simulator, serve: Any
) -> None:
    """Under an id of its own: no service takes one id for two calls."""
    counter = Counter()
    model.script(
        chat_wire.tool_calls(MORE),
        chat_wire.tool_calls(MORE, ("c4", *MORE[1:])),
        chat_wire.answer("Done."),
    )
    async with serve(model.base_url, counter.tool, adapter=ChatProvider) as runtime:
        work = await runtime.serve(await runtime.ask())

    assert work.state == "completed"
    _, _, *told = model.requests()[2].json["messages"]
    assert told == AGAIN
    assert [call.arguments.n for call in counter.calls] == [3, 3]


def interrupted() -> Turn:
    """Return a turn whose worker died with one call done, one running and one not started."""
    turn = make.TurnFactory.create(orphaned=True, asked=True)
    done = make.ToolStepFactory.create(
        turn=turn, provider_step__sequence=2, succeeded=True, call_id="done"
    )
    of_one_response = {"turn": turn, "provider_step": done.provider_step}
    make.ToolStepFactory.create(
        **of_one_response, running=True, call_id="running", effect=ToolStep.Effect.EXTERNAL
    )
    make.ToolStepFactory.create(**of_one_response, call_id="waiting")
    transitions.interrupt_turns(
        [turn.pk], ErrorCode.RUNTIME_LOST, conversation_ids=[turn.conversation_id]
    )
    return turn


async def test_calls_that_an_interruption_left_open_are_answered_beside_the_others(
    model: Simulator,
) -> None:
    model.script(chat_wire.answer("I do not know."))
    turn = await in_thread(interrupted)
    conversation = await in_thread(lambda: turn.conversation)
    async with serving(model.base_url, adapter=ChatProvider) as runtime:
        await runtime.serve(await runtime.ask("And?", conversation))

    _, _, called, *results, question = model.requests()[0].json["messages"]
    ids = ["done", "running", "waiting"]
    assert [call["id"] for call in called["tool_calls"]] == ids
    assert [(result["role"], result["tool_call_id"]) for result in results] == [
        ("tool", call_id) for call_id in ids
    ]
    assert results[0]["content"] == "found"
    outcomes = [json.loads(result["content"])["error"] for result in results[1:]]
    assert outcomes == ["outcome_unknown", "not_started"]
    assert question == {"role": "user", "content": "And?"}
