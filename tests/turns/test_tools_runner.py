"""Calling a tool: arguments are checked, time and result are bounded, nothing blocks the
loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from recovery.errors import ErrorCode
from turns import bounds
from turns.tools import registry as shipped
from turns.tools import runner
from turns.tools.registry import (
    Arguments,
    Effect,
    Invocation,
    Registry,
    State,
    Tool,
    ToolFailed,
)
from turns.tools.runner import Outcome, invoke


class Nothing(Arguments):
    pass


class Pair(Arguments):
    name: str
    count: int


def tool(call: Callable[[Invocation[Any]], Any], **options: Any) -> Tool[Any]:
    described: dict[str, Any] = {
        "name": "scripted",
        "description": "A tool of a test.",
        "arguments": Nothing,
        "effect": Effect.READ,
        **options,
    }
    return Tool(call=call, **described)


async def called(tool: Tool[Any], arguments: Arguments | None = None) -> Outcome:
    invocation = Invocation(1, 2, 3, uuid4(), arguments or Nothing())
    return await invoke(tool, invocation)


async def echo(_: Invocation[Any]) -> str:
    return "fine"


def test_every_shipped_tool_has_a_schema_that_refuses_what_it_does_not_name() -> None:
    for schema in shipped.schemas():
        assert schema.parameters["additionalProperties"] is False
    assert [schema.name for schema in shipped.schemas()] == [
        "search_history",
        "read_message",
        "note_save",
        "note_list",
        "note_remove",
        "webhook_post",
        "start_job",
        "list_jobs",
        "job_status",
        "cancel_job",
        "recall",
    ]


def test_only_a_tool_without_optional_fields_is_offered_as_strict() -> None:
    """behaviour V11"""
    for schema in shipped.schemas():
        everything = set(schema.parameters["properties"])
        assert schema.strict == (set(schema.parameters["required"]) == everything)
    strict = {schema.name: schema.strict for schema in shipped.schemas()}
    assert not strict["read_message"]
    assert strict["note_list"]


def test_a_tool_name_is_taken_once() -> None:
    tools = Registry()
    tools.register(tool(echo))
    with pytest.raises(ValueError, match="taken"):
        tools.register(tool(echo))


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "[]", "null", '{"name": 1, "count": 2}', '{"name": "a"}',
     '{"name": "a", "count": NaN}',
     '{"name": "a", "count": 1, "more": 2}', '{"name": "a", "count": 1, "count": 2}',
     '{"name": "a", "count": ' + "[" * 100_000 + "}"],
)  # fmt: skip
def test_bad_arguments_are_refused_without_repeating_them(arguments: str) -> None:
    """failure H44"""
    with pytest.raises(ToolFailed) as refused:
        tool(echo, arguments=Pair).parse(arguments)
    assert refused.value.code == ErrorCode.INVALID_TOOL_ARGUMENTS
    assert refused.value.state == State.FAILED
    assert len(refused.value.result) < 500


def test_arguments_are_repaired_to_storable_text() -> None:
    """failures H37, H38"""
    parsed = tool(echo, arguments=Pair).parse('{"name": "a\\u0000\\ud800", "count": 2}')
    assert parsed == Pair(name="a\ufffd\ufffd", count=2)


async def test_a_result_is_kept() -> None:
    assert await called(tool(echo)) == Outcome(State.SUCCEEDED, "fine")


async def test_a_result_of_50_megabytes_ends_the_step_with_a_bound_code() -> None:
    """failure H40"""

    async def call(_: Invocation[Any]) -> str:
        return "x" * 50_000_000

    outcome = await called(tool(call))
    assert (outcome.state, outcome.error_code) == (
        State.FAILED,
        ErrorCode.TOOL_RESULT_TOO_LARGE,
    )
    assert len(outcome.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES
    assert outcome.result.endswith("[cut: the result was 50000000 bytes]")


def endless(_: Invocation[Any]) -> Iterator[str]:
    return itertools.repeat("y" * 10_000)


async def endless_async(_: Invocation[Any]) -> AsyncIterator[str]:
    while True:
        yield "y" * 10_000


@pytest.mark.django_db(transaction=True)  # the executor may rename its sessions
@pytest.mark.parametrize(
    ("call", "runs"),
    [(endless, "in_own_thread"), (endless, "in_database_thread"), (endless_async, "on_loop")],
)
async def test_an_endless_result_is_stopped_at_the_bound(call: Any, runs: Any) -> None:
    """failure H40"""
    tracemalloc.start()
    outcome = await called(tool(call, runs=runs))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (outcome.state, outcome.error_code) == (
        State.FAILED,
        ErrorCode.TOOL_RESULT_TOO_LARGE,
    )
    assert "more than" in outcome.result
    assert len(outcome.result.encode()) <= bounds.TOOL_RESULT_MAX_BYTES
    assert peak < 16 * bounds.TOOL_RESULT_MAX_BYTES


async def test_what_a_tool_raises_stays_inside() -> None:
    async def call(_: Invocation[Any]) -> str:
        raise RuntimeError("the person's words")

    outcome = await called(tool(call))
    assert (outcome.state, outcome.error_code) == (State.FAILED, ErrorCode.TOOL_FAILED)
    assert "words" not in outcome.result


async def test_a_reading_tool_that_takes_too_long_fails() -> None:
    async def call(_: Invocation[Any]) -> str:
        await asyncio.Event().wait()
        return ""

    outcome = await called(tool(call, timeout_seconds=0.05))
    assert (outcome.state, outcome.error_code) == (State.FAILED, ErrorCode.TOOL_TIMEOUT)


async def test_a_writing_tool_that_takes_too_long_has_an_unknown_outcome() -> None:
    async def call(_: Invocation[Any]) -> str:
        await asyncio.Event().wait()
        return ""

    outcome = await called(tool(call, timeout_seconds=0.05, effect=Effect.EXTERNAL))
    assert (outcome.state, outcome.error_code) == (
        State.INTERRUPTED,
        ErrorCode.OUTCOME_UNKNOWN,
    )
    assert "not known" in outcome.result


async def test_a_blocking_tool_does_not_hold_up_the_loop_and_is_left_behind() -> None:
    release, entered, left = threading.Event(), threading.Event(), threading.Event()
    turned_meanwhile = 0

    def call(_: Invocation[Any]) -> str:
        entered.set()
        release.wait(60)
        left.set()
        return "late"

    blocked = asyncio.create_task(called(tool(call, runs="in_own_thread", timeout_seconds=0.5)))
    while not blocked.done():
        turned_meanwhile += entered.is_set()
        await asyncio.sleep(0)
    assert turned_meanwhile > 0
    assert blocked.result().error_code == ErrorCode.TOOL_TIMEOUT
    assert not left.is_set()
    release.set()


async def test_cancelling_does_not_wait_for_a_blocked_thread() -> None:
    release, entered, left = threading.Event(), threading.Event(), threading.Event()

    def call(_: Invocation[Any]) -> str:
        entered.set()
        release.wait(60)
        left.set()
        return "late"

    blocked = asyncio.create_task(called(tool(call, runs="in_own_thread")))
    await asyncio.to_thread(entered.wait)
    blocked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await blocked
    assert not left.is_set()
    release.set()


async def test_a_call_without_a_thread_to_run_in_did_not_begin_and_costs_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []

    def call(_: Invocation[Any]) -> str:
        begun.append("call")
        return "done"

    blocking = tool(call, runs="in_own_thread")
    with monkeypatch.context() as machine:
        machine.setattr(runner, "_blocked", threading.BoundedSemaphore(1))
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", no_thread)
            for _ in range(3):
                refused = await called(blocking)
                assert refused.state == State.UNAVAILABLE
        assert begun == []
        assert (await called(blocking)).result == "done"


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
