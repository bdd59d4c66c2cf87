"""Calls of a response: their ids, arguments and bounds, and when they are not given out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import Stream, call, event, frames_reply, response
from tests.turns.providers.hearing import ASK, hear_once
from turns.providers.jsontext import MalformedJson, decode_arguments
from turns.providers.responses import ResponsesProvider
from turns.providers.types import ToolCall


def completed(*output: dict[str, Any], **members: Any) -> bytes:
    return event("response.completed", response=response(output, **members))


async def test_several_calls_are_given_in_their_order(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(wire.tool_calls(("call_a", "first", "{}"), ("call_b", "second", '{"n":2}')))
    heard = await hear_once(service, provider)
    assert heard.completed.calls == (
        ToolCall("call_a", "fc_0", "first", "{}"),
        ToolCall("call_b", "fc_1", "second", '{"n":2}'),
    )
    assert (heard.completed.text, heard.completed.anomalies) == ("", 0)


async def test_calls_keep_the_order_of_the_output_not_of_their_endings(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """A gateway ends the call before the message that stands before it."""
    item = call("calc", "{}")
    service.script(
        frames_reply(
            event("response.output_item.done", output_index=1, item=item),
            event("response.output_item.done", output_index=0, item=wire.message("Wait.")),
            completed(),
        )
    )
    heard = await hear_once(service, provider)
    assert heard.text == "Wait."
    assert [found.name for found in heard.completed.calls] == ["calc"]


@pytest.mark.parametrize("call_id", [None, ""])
async def test_a_call_without_an_id_is_named_after_its_step_and_place(
    service: Simulator, provider: ResponsesProvider, call_id: str | None
) -> None:
    service.script(
        frames_reply(completed(call("a", "{}", call_id=call_id), call("b", "{}", call_id=None)))
    )
    heard = await hear_once(service, provider, replace(ASK, step=3))
    assert [found.call_id for found in heard.completed.calls] == ["3:0", "3:1"]
    assert heard.completed.anomalies == 0


async def test_two_different_calls_under_one_id_get_ids_of_their_own(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(
        frames_reply(
            completed(
                call("calc", '{"a":1}', call_id="0"),
                call("calc", '{"a":2}', call_id="0"),
                call("note", '{"a":1}', call_id="0"),
            )
        )
    )
    heard = await hear_once(service, provider, replace(ASK, step=2))
    assert [found.call_id for found in heard.completed.calls] == ["0", "2:1", "2:2"]


async def test_an_id_we_would_give_is_not_given_twice(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(
        frames_reply(completed(call("a", "{}", call_id="1:1"), call("b", "{}", call_id=None)))
    )
    heard = await hear_once(service, provider)
    assert [found.call_id for found in heard.completed.calls] == ["1:1", "1:1:1"]


async def test_the_same_call_twice_is_one_call_and_an_anomaly(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(completed(call("calc", "{}"), call("calc", "{}"))))
    heard = await hear_once(service, provider)
    assert len(heard.completed.calls) == 1
    assert heard.completed.anomalies == 1


async def test_an_unknown_tool_name_is_the_registrys_to_refuse(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(completed(call("no_such_tool", "{}"))))
    heard = await hear_once(service, provider)
    assert heard.completed.calls[0].name == "no_such_tool"


@pytest.mark.parametrize("name", [None, ""])
async def test_a_call_without_a_name_is_damage(
    service: Simulator, provider: ResponsesProvider, name: str | None
) -> None:
    service.script(frames_reply(completed({**call("x", "{}"), "name": name})))
    heard = await hear_once(service, provider)
    assert heard.code == "provider_protocol"


# arguments


@pytest.mark.parametrize(
    "arguments", ["", "{", "[1]", "7", '{"a":1,"a":2}', '{"a":NaN}', '{"a":1e400}', "{}" * 40]
)
async def test_arguments_are_given_as_they_are_and_refused_when_parsed(
    service: Simulator, provider: ResponsesProvider, arguments: str
) -> None:
    service.script(frames_reply(completed(call("calc", arguments))))
    heard = await hear_once(service, provider)
    assert heard.completed.calls[0].arguments == arguments
    with pytest.raises(MalformedJson) as refused:
        decode_arguments(arguments)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("sent_in", ["deltas", "arguments_done", "item_done"])
async def test_arguments_are_found_wherever_the_service_put_them(
    service: Simulator, provider: ResponsesProvider, sent_in: str
) -> None:
    """Some send them in `done` alone; some leave them out of the terminal event."""
    stream = Stream()
    frames = stream.call("calc", '{"a":1}')
    added, first, second, arguments_done, item_done = frames
    bare = event("response.output_item.done", output_index=0, item=call("calc", ""))
    chosen = {
        "deltas": [added, first, second, bare],
        "arguments_done": [added, arguments_done, bare],
        "item_done": [item_done],
    }[sent_in]
    service.script(frames_reply(*chosen, completed(call("calc", ""))))
    heard = await hear_once(service, provider)
    assert [found.arguments for found in heard.completed.calls] == ['{"a":1}']
    assert heard.completed.anomalies == 0


async def test_arguments_the_terminal_event_contradicts_are_an_anomaly(
    service: Simulator, provider: ResponsesProvider
) -> None:
    frames = Stream().call("calc", '{"a":1}')
    service.script(frames_reply(*frames, completed(call("calc", '{"a":2}'))))
    heard = await hear_once(service, provider)
    assert heard.completed.calls[0].arguments == '{"a":2}'
    assert heard.completed.anomalies == 1


async def test_a_call_the_terminal_event_does_not_repeat_is_an_anomaly(
    service: Simulator, provider: ResponsesProvider
) -> None:
    frames = Stream().call("calc", "{}")
    service.script(frames_reply(*frames, completed(wire.message("Never mind."))))
    heard = await hear_once(service, provider)
    assert heard.completed.calls == ()
    assert heard.completed.anomalies == 1


async def test_ids_drawn_anew_for_the_terminal_event_are_no_contradiction(
    service: Simulator, provider: ResponsesProvider
) -> None:
    frames = Stream().call("calc", '{"a":1}')
    again = call("calc", '{"a":1}', item_id="fc_other")
    service.script(frames_reply(*frames, completed(again)))
    assert (await hear_once(service, provider)).completed.anomalies == 0


async def test_arguments_over_their_bound_fail_the_response(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(completed(call("calc", '"' + "x" * 65_536 + '"'))))
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.reason) == ("response_too_large", "arguments")


async def test_a_runaway_list_of_calls_fails_the_response(
    service: Simulator, provider: ResponsesProvider
) -> None:
    calls = [call("calc", "{}", call_id=f"call_{number}") for number in range(129)]
    service.script(frames_reply(completed(*calls)))
    heard = await hear_once(service, provider)
    assert (heard.code, heard.failed.reason) == ("response_too_large", "calls")


# calls that must not be executed


async def test_an_incomplete_response_gives_out_no_calls(
    service: Simulator, provider: ResponsesProvider
) -> None:
    stream = Stream()
    frames = stream.call("calc", "{}")
    service.script(frames_reply(*frames, stream.terminal("incomplete")))
    heard = await hear_once(service, provider)
    assert heard.completed.incomplete
    assert heard.completed.calls == ()


async def test_a_call_that_is_itself_incomplete_makes_the_response_incomplete(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(completed(call("calc", '{"a":', status="incomplete"))))
    heard = await hear_once(service, provider)
    assert heard.completed.incomplete
    assert heard.completed.calls == ()


@pytest.mark.parametrize("order", ["delta before its item", "item announced twice"])
async def test_contradictions_about_items_are_counted_so_calls_can_be_refused(
    service: Simulator, provider: ResponsesProvider, order: str
) -> None:
    added, *rest = Stream().call("calc", "{}")
    frames = [rest[0], added, *rest[1:]] if "before" in order else [added, added, *rest]
    unnumbered = [frame.replace(b'"sequence_number"', b'"number"') for frame in frames]
    service.script(frames_reply(*unnumbered, completed(call("calc", "{}"))))
    heard = await hear_once(service, provider)
    assert heard.completed.anomalies > 0
    assert len(heard.completed.calls) == 1


async def test_a_part_of_an_unannounced_item_among_announced_ones_is_an_anomaly(
    service: Simulator, provider: ResponsesProvider
) -> None:
    part = event("response.content_part.added", item_id="msg_9", output_index=9, part={})
    frames = Stream().call("calc", "{}")
    service.script(frames_reply(*frames, part, completed(call("calc", "{}"))))
    assert (await hear_once(service, provider)).completed.anomalies == 1


# what decoded arguments hold


def test_decoded_arguments_can_be_stored() -> None:
    """Failures H37, H38: pairs joined, lone halves and NUL replaced, in keys too."""
    text = '{"a\\u0000":["\\ud83d\\ude00","\\ud83d",{"b":"\\u0000"}],"n":[1,2.5,null,true]}'
    assert decode_arguments(text) == {
        "a\ufffd": ["😀", "\ufffd", {"b": "\ufffd"}],
        "n": [1, 2.5, None, True],
    }


@pytest.mark.parametrize("depth", [65, 100_000])
def test_arguments_nested_too_deeply_are_refused(depth: int) -> None:
    with pytest.raises(MalformedJson):
        decode_arguments('{"a":' + "[" * depth + "]" * depth + "}")
