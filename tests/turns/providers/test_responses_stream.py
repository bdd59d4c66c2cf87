"""A response that arrives whole: order, text, usage, and what services do differently."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, drip, send
from tests.simulators.responses_wire import Stream, event, frames_reply, message, response
from tests.turns.providers.hearing import hear_once
from turns.providers.responses import ResponsesProvider
from turns.providers.types import (
    AssistantText,
    Completed,
    FunctionCall,
    FunctionResult,
    Started,
    TextDelta,
    TextRequest,
    ToolCall,
    ToolSchema,
    UserText,
)

USAGE = {
    "input_tokens": 9,
    "output_tokens": 5,
    "total_tokens": 14,
    "cached_tokens": 4,
    "reasoning_tokens": 2,
}


def completed(*output: dict[str, Any], **members: Any) -> bytes:
    return event("response.completed", response=response(output, **members))


def delta(text: str, **members: Any) -> bytes:
    return event("response.output_text.delta", delta=text, **members)


async def test_a_stream_in_seven_byte_pieces_is_heard_in_order(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Behaviour F2: started, two deltas, one call, normalised usage, completed."""
    stream = Stream()
    frames = [*stream.opening(), *stream.message("4 ", "👍"), *stream.call("calc", '{"a":1}')]
    frames.append(stream.terminal())
    service.script(Reply([drip(b"".join(frames), size=7)]))
    heard = await hear_once(service, provider)
    assert heard.events == [
        Started("resp_1"),
        TextDelta("4 "),
        TextDelta("👍"),
        Completed(
            "resp_1",
            "4 👍",
            (ToolCall("call_1", "fc_1", "calc", '{"a":1}'),),
            USAGE,
            incomplete=False,
            anomalies=0,
        ),
    ]


async def test_the_request_carries_the_whole_history_and_leaves_nothing_behind(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Behaviour F1; the history goes out instead of a previous response id (design 7)."""
    service.script(wire.answer("4"))
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    await hear_once(
        service,
        provider,
        TextRequest(
            model="m",
            instructions="Be brief.",
            items=(
                UserText("2+2?"),
                AssistantText("Let me check."),
                FunctionCall("call_7", "calc", '{"e":"2+2"}'),
                FunctionResult("call_7", '{"value":4}'),
            ),
            tools=(ToolSchema("calc", "Computes.", parameters),),
            max_output_tokens=100,
        ),
    )
    (request,) = service.requests()
    assert request.path == "/v1/responses"
    assert request.json == {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "2+2?"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "Let me check.", "annotations": []}
                ],
            },
            {
                "type": "function_call",
                "call_id": "call_7",
                "name": "calc",
                "arguments": '{"e":"2+2"}',
            },
            {"type": "function_call_output", "call_id": "call_7", "output": '{"value":4}'},
        ],
        "tools": [
            {
                "type": "function",
                "name": "calc",
                "description": "Computes.",
                "parameters": parameters,
                "strict": True,
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_output_tokens": 100,
        "stream": True,
        "store": False,
    }
    assert request.headers["authorization"] == "Bearer key"
    assert request.headers["accept"] == "text/event-stream"
    assert request.headers["accept-encoding"] == "identity"
    assert "cookie" not in request.headers


async def test_a_provider_of_text_alone_is_offered_no_tools(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """Behaviour F7."""
    service.script(wire.answer("4"))
    await hear_once(service, provider)
    body = service.requests()[0].json
    assert not {"tools", "tool_choice", "parallel_tool_calls", "max_output_tokens"} & set(body)


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request(
    service: Simulator, provider: ResponsesProvider
) -> None:
    headers = {"Content-Type": "text/event-stream", "Set-Cookie": "who=alice"}
    service.script(wire.answer("4", headers=headers), wire.answer("5"))
    await hear_once(service, provider)
    await hear_once(service, provider)
    assert "cookie" not in service.requests()[1].headers


async def test_the_next_step_of_a_loop_uses_the_same_connection(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(wire.answer("1"), wire.answer("2"))
    for text in ("1", "2"):
        assert (await hear_once(service, provider)).completed.text == text
    assert len({request.connection for request in service.requests()}) == 1


# what compatible servers leave out or do otherwise


async def test_a_server_without_numbers_and_indexes_is_understood(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """As llama.cpp streams: no sequence_number, output_index, content_index."""
    item = message("Hi you", item_id="msg_x")
    service.script(
        frames_reply(
            event("response.created", response=response(status="in_progress")),
            event("response.output_item.added", item={**item, "content": []}),
            event("response.content_part.added", item_id="msg_x", part={"type": "output_text"}),
            delta("Hi", item_id="msg_x"),
            delta(" you", item_id="msg_x"),
            event("response.output_text.done", item_id="msg_x", text="Hi you"),
            event("response.output_item.done", item=item),
            completed(item, usage={"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}),
            b"\n",
        )
    )
    heard = await hear_once(service, provider)
    assert heard.deltas == ["Hi", " you"]
    assert heard.completed.usage == {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    assert heard.completed.anomalies == 0


async def test_text_only_in_the_terminal_event_becomes_one_delta(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(completed(message("All of it."))))
    heard = await hear_once(service, provider)
    assert heard.events[:2] == [Started("resp_1"), TextDelta("All of it.")]
    assert heard.completed.anomalies == 0


async def test_a_terminal_event_that_says_more_is_shown_to_its_end(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(delta("All"), completed(message("All of it."))))
    heard = await hear_once(service, provider)
    assert heard.deltas == ["All", " of it."]
    assert (heard.completed.text, heard.completed.anomalies) == ("All of it.", 0)


async def test_a_terminal_event_that_says_otherwise_is_believed_and_counted(
    service: Simulator, provider: ResponsesProvider
) -> None:
    service.script(frames_reply(delta("Yes"), completed(message("No"))))
    heard = await hear_once(service, provider)
    assert heard.deltas == ["Yes"]
    assert (heard.completed.text, heard.completed.anomalies) == ("No", 1)


async def test_a_terminal_event_without_output_leaves_what_was_streamed(
    service: Simulator, provider: ResponsesProvider
) -> None:
    stream = Stream()
    frames = [*stream.message("Hi"), *stream.call("calc", "{}")]
    service.script(frames_reply(*frames, completed()))
    heard = await hear_once(service, provider)
    assert heard.completed.text == "Hi"
    assert [call.name for call in heard.completed.calls] == ["calc"]
    assert heard.completed.anomalies == 0


async def test_done_without_deltas_is_shown(
    service: Simulator, provider: ResponsesProvider
) -> None:
    done = event("response.output_text.done", item_id="m", content_index=0, text="Hello")
    service.script(frames_reply(delta("Hel", item_id="m", content_index=0), done, completed()))
    heard = await hear_once(service, provider)
    assert heard.deltas == ["Hel", "lo"]
    assert (heard.completed.text, heard.completed.anomalies) == ("Hello", 0)


async def test_done_that_contradicts_its_deltas_is_counted(
    service: Simulator, provider: ResponsesProvider
) -> None:
    done = event("response.output_text.done", item_id="m", content_index=0, text="Bye")
    service.script(
        frames_reply(delta("Hello", item_id="m", content_index=0), done, completed())
    )
    heard = await hear_once(service, provider)
    assert heard.deltas == ["Hello"]
    assert heard.completed.text == "Bye"
    assert heard.completed.anomalies > 0


async def test_item_ids_that_change_with_every_event_do_not_double_the_text(
    service: Simulator, provider: ResponsesProvider
) -> None:
    where = {"output_index": 0, "content_index": 0}
    service.script(
        frames_reply(
            event("response.output_item.added", output_index=0, item=message("", item_id="a")),
            delta("Hel", item_id="b", **where),
            delta("lo", item_id="c", **where),
            event("response.output_text.done", item_id="d", text="Hello", **where),
            completed(message("Hello", item_id="e")),
        )
    )
    heard = await hear_once(service, provider)
    assert heard.deltas == ["Hel", "lo"]
    assert (heard.completed.text, heard.completed.anomalies) == ("Hello", 0)


async def test_two_messages_are_two_paragraphs(
    service: Simulator, provider: ResponsesProvider
) -> None:
    stream = Stream()
    frames = [*stream.message("One."), *stream.message("Two.", item_id="msg_2")]
    service.script(frames_reply(*frames, stream.terminal()))
    heard = await hear_once(service, provider)
    assert heard.deltas == ["One.", "\n\nTwo."]
    assert (heard.completed.text, heard.completed.anomalies) == ("One.\n\nTwo.", 0)


async def test_a_refusal_is_an_answer(service: Simulator, provider: ResponsesProvider) -> None:
    part = {"type": "refusal", "refusal": "I cannot."}
    service.script(
        frames_reply(
            event("response.refusal.delta", item_id="m", content_index=0, delta="I "),
            event("response.refusal.done", item_id="m", content_index=0, refusal="I cannot."),
            completed(message("", item_id="m", content=[part])),
        )
    )
    heard = await hear_once(service, provider)
    assert heard.deltas == ["I ", "cannot."]
    assert heard.completed.text == "I cannot."


async def test_reasoning_is_never_part_of_the_answer(
    service: Simulator, provider: ResponsesProvider
) -> None:
    reasoning = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "secret"}],
        "content": [{"type": "reasoning_text", "text": "secret"}],
    }
    where = {"item_id": "rs_1", "output_index": 0}
    service.script(
        frames_reply(
            event("response.output_item.added", item=reasoning, output_index=0),
            event("response.reasoning_text.delta", delta="secret", content_index=0, **where),
            event("response.reasoning_summary_text.delta", delta="secret", **where),
            event("response.reasoning_part.added", part={}, **where),
            delta("4"),
            completed(reasoning, message("4")),
        )
    )
    heard = await hear_once(service, provider)
    assert (heard.text, heard.completed.text) == ("4", "4")


async def test_events_and_items_of_other_families_are_skipped(
    service: Simulator, provider: ResponsesProvider
) -> None:
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {}}
    service.script(
        frames_reply(
            event("response.web_search_call.searching", item_id="ws_1", output_index=0),
            event("response.output_item.added", item=search, output_index=0),
            event("response.something.new", anything=[1, {"a": None}]),
            event("keepalive"),
            delta("4"),
            completed(search, message("4")),
        )
    )
    heard = await hear_once(service, provider)
    assert (heard.completed.text, heard.completed.anomalies) == ("4", 0)


@pytest.mark.parametrize("frame", [b"data: null\n\n", b"data: : OPENROUTER PROCESSING\n\n"])
async def test_signs_of_life_sent_as_data_say_nothing(
    service: Simulator, provider: ResponsesProvider, frame: bytes
) -> None:
    service.script(frames_reply(frame, delta("4"), completed()))
    assert (await hear_once(service, provider)).completed.text == "4"


async def test_the_type_in_the_data_counts_and_the_event_name_only_fills_in(
    service: Simulator, provider: ResponsesProvider
) -> None:
    text_delta = "response.output_text.delta"
    service.script(
        frames_reply(
            wire.sse("message", {"type": text_delta, "delta": "a"}),
            wire.sse("", {"type": text_delta, "delta": "b"}),
            wire.sse(text_delta, {"delta": "c"}),
            wire.sse(text_delta, {"type": 7, "delta": "d"}),
            wire.sse("", {"delta": "nobody"}),
            wire.sse("", {"type": ["x"], "delta": "nobody"}),
            completed(),
            send(b"data: [DONE]\n\n"),
        )
    )
    heard = await hear_once(service, provider)
    assert (heard.completed.text, heard.completed.anomalies) == ("abcd", 0)
