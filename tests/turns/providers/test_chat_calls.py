"""Calls put together from fragments, as servers really cut and number them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators import chat_wire as wire
from tests.simulators.chat_wire import chunk, ending, fragment, frames_reply, text
from tests.simulators.client import Simulator
from tests.turns.providers.hearing import ASK, hear_once
from turns.providers.chat import ChatProvider


async def heard_calls(
    service: Simulator, chat: ChatProvider, *frames: bytes, reason: str = "tool_calls"
) -> list[tuple[str, str, str]]:
    """Return (id, name, arguments) of the calls in `frames`; fail on an anomaly."""
    service.script(frames_reply(*frames, *ending(reason)))
    completed = (await hear_once(service, chat, replace(ASK, step=2))).completed
    assert completed.anomalies == 0
    return [(call.call_id, call.name, call.arguments) for call in completed.calls]


async def test_several_calls_may_be_interleaved(service: Simulator, chat: ChatProvider) -> None:
    first, second = wire.call(0, "a", "one", '{"n":1}'), wire.call(1, "b", "two", '{"n":2}')
    mixed = [frame for pair in zip(first, second, strict=True) for frame in pair]
    found = await heard_calls(service, chat, *mixed)
    assert found == [("a", "one", '{"n":1}'), ("b", "two", '{"n":2}')]


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "function_call"])
async def test_calls_are_given_out_whatever_a_server_calls_the_finish(
    service: Simulator, chat: ChatProvider, reason: str
) -> None:
    found = await heard_calls(service, chat, *wire.call(0, "a", "one", "{}"), reason=reason)
    assert found == [("a", "one", "{}")]


async def test_calls_without_ids_are_named_after_step_and_place(
    service: Simulator, chat: ChatProvider
) -> None:
    found = await heard_calls(
        service,
        chat,
        fragment(0, name="one", arguments='{"n":'),
        fragment(0, arguments="1}"),
        fragment(1, name="two", arguments="{}"),
    )
    assert found == [("2:0", "one", '{"n":1}'), ("2:1", "two", "{}")]


@pytest.mark.parametrize("index", [0, None])
async def test_calls_under_one_index_are_told_apart_by_their_ids(
    service: Simulator, chat: ChatProvider, index: int | None
) -> None:
    found = await heard_calls(
        service,
        chat,
        fragment(index, call_id="a", name="one", arguments='{"n":'),
        fragment(index, arguments="1}"),
        fragment(index, call_id="b", name="one", arguments='{"n":2}'),
    )
    assert found == [("a", "one", '{"n":1}'), ("b", "one", '{"n":2}')]


@pytest.mark.parametrize("index", [0, None])
async def test_calls_without_index_or_id_are_told_apart_by_their_names(
    service: Simulator, chat: ChatProvider, index: int | None
) -> None:
    found = await heard_calls(
        service,
        chat,
        fragment(index, name="one", arguments='{"n":1}'),
        fragment(index, name="one", arguments='{"n":2}'),
    )
    assert found == [("2:0", "one", '{"n":1}'), ("2:1", "one", '{"n":2}')]


async def test_a_server_that_repeats_id_and_name_means_one_call(
    service: Simulator, chat: ChatProvider
) -> None:
    found = await heard_calls(
        service,
        chat,
        fragment(0, call_id="a", name="one", arguments='{"n"'),
        fragment(0, call_id="a", name="one", arguments=":1}"),
        fragment(0, call_id="a", name="", arguments=""),
    )
    assert found == [("a", "one", '{"n":1}')]


async def test_the_older_function_call_is_a_call(
    service: Simulator, chat: ChatProvider
) -> None:
    found = await heard_calls(
        service,
        chat,
        chunk({"function_call": {"name": "one", "arguments": '{"n":'}}),
        chunk({"function_call": {"arguments": "1}"}}),
        reason="function_call",
    )
    assert found == [("2:0", "one", '{"n":1}')]


async def test_text_before_a_call_is_kept(service: Simulator, chat: ChatProvider) -> None:
    frames = [text("Let me see."), *wire.call(0, "a", "one", "{}")]
    service.script(frames_reply(*frames, *ending("tool_calls")))
    completed = (await hear_once(service, chat)).completed
    assert (completed.text, len(completed.calls)) == ("Let me see.", 1)


async def test_a_call_that_changes_its_name_is_an_anomaly(
    service: Simulator, chat: ChatProvider
) -> None:
    frames = [
        fragment(0, call_id="a", name="one", arguments='{"n"'),
        fragment(0, call_id="a", name="two", arguments=":1}"),
    ]
    service.script(frames_reply(*frames, *ending("tool_calls")))
    completed = (await hear_once(service, chat)).completed
    assert (completed.calls[0].name, completed.anomalies) == ("one", 1)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_a_cut_response_gives_out_no_calls(
    service: Simulator, chat: ChatProvider, reason: str
) -> None:
    service.script(frames_reply(*wire.call(0, "a", "one", '{"n":'), *ending(reason)))
    completed = (await hear_once(service, chat)).completed
    assert completed.incomplete
    assert completed.calls == ()


@pytest.mark.parametrize(
    ("frames", "code", "reason"),
    [
        ([fragment(0, call_id="a", arguments="{}")], "provider_protocol", "name: missing"),
        ([chunk({"tool_calls": {"index": 0}})], "provider_protocol", "tool_calls: list_type"),
        ([chunk({"tool_calls": [7]})], "provider_protocol", ": model_type"),
        ([chunk({"tool_calls": [{"index": "0"}]})], "provider_protocol", "index: int_type"),
        ([fragment(0, call_id="a" * 513, name="x")], "provider_protocol", "id: too_long"),
        ([fragment(0, name="x" * 129)], "provider_protocol", "function.name: too_long"),
        (
            [fragment(0, name="x", arguments="y" * 40_000)] * 2,
            "response_too_large",
            "arguments",
        ),
        (
            [fragment(number, name="x", arguments="{}") for number in range(129)],
            "response_too_large",
            "calls",
        ),
    ],
)
async def test_damaged_or_oversized_calls_fail_the_response(
    service: Simulator, chat: ChatProvider, frames: list[bytes], code: str, reason: str
) -> None:
    service.script(frames_reply(*frames, *ending("tool_calls")))
    heard = await hear_once(service, chat)
    assert (heard.code, heard.failed.reason) == (code, reason)
