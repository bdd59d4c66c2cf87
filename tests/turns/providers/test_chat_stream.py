"""Chat completions that arrive whole: requests, text, usage, what servers do differently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators import chat_wire as wire
from tests.simulators.chat_wire import DONE, chunk, ending, frames_reply, text
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, drip
from tests.turns.providers.hearing import ASK, hear_once
from turns.providers.chat import ChatProvider
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


async def test_a_stream_in_seven_byte_pieces_is_heard_in_order(
    service: Simulator, chat: ChatProvider
) -> None:
    """Behaviour F2 for the other protocol."""
    frames = [wire.OPENING, text("4 "), text("👍"), *wire.call(0, "call_1", "calc", '{"a":1}')]
    service.script(Reply([drip(b"".join([*frames, *ending("tool_calls")]), size=7)]))
    heard = await hear_once(service, chat)
    assert heard.events == [
        Started("chatcmpl-1"),
        TextDelta("4 "),
        TextDelta("👍"),
        Completed(
            "chatcmpl-1",
            "4 👍",
            (ToolCall("call_1", None, "calc", '{"a":1}'),),
            USAGE,
            incomplete=False,
            anomalies=0,
        ),
    ]


async def test_the_request_is_the_history_as_messages(
    service: Simulator, chat: ChatProvider
) -> None:
    """Behaviour F1: one result for each call, text and calls of one response in one message."""
    service.script(wire.answer("4"))
    parameters = {"type": "object", "properties": {}, "additionalProperties": False}
    await hear_once(
        service,
        chat,
        TextRequest(
            model="m",
            instructions="Be brief.",
            items=(
                UserText("2+2?"),
                AssistantText("Let me check."),
                FunctionCall("call_7", "calc", "{}"),
                FunctionCall("call_8", "calc", "{}"),
                FunctionResult("call_7", "4"),
                FunctionResult("call_8", "4"),
                FunctionCall("call_9", "calc", "{}"),
                FunctionResult("call_9", "5"),
            ),
            tools=(ToolSchema("calc", "Computes.", parameters),),
            max_output_tokens=100,
        ),
    )
    (request,) = service.requests()
    assert request.path == "/v1/chat/completions"

    def call(call_id: str) -> dict[str, object]:
        function = {"name": "calc", "arguments": "{}"}
        return {"id": call_id, "type": "function", "function": function}

    assert request.json == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
            {
                "role": "assistant",
                "content": "Let me check.",
                "tool_calls": [call("call_7"), call("call_8")],
            },
            {"role": "tool", "tool_call_id": "call_7", "content": "4"},
            {"role": "tool", "tool_call_id": "call_8", "content": "4"},
            {"role": "assistant", "content": None, "tool_calls": [call("call_9")]},
            {"role": "tool", "tool_call_id": "call_9", "content": "5"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "calc",
                    "description": "Computes.",
                    "parameters": parameters,
                    "strict": True,
                },
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize(
    ("said", "role"),
    [(UserText, "user"), (AssistantText, "assistant")],
    ids=["user", "assistant"],
)
async def test_texts_of_one_role_in_a_row_are_paragraphs_of_one_message(
    service: Simulator, chat: ChatProvider, said: type[UserText | AssistantText], role: str
) -> None:
    """Two questions; two reports of jobs, or an answer and a report."""
    service.script(wire.answer("4"))
    items = (said("alpha"), said("beta"))
    await hear_once(service, chat, replace(ASK, instructions="", items=items))
    assert service.requests()[0].json["messages"] == [
        {"role": role, "content": "alpha\n\nbeta"}
    ]


async def test_the_limits_name_is_the_services(service: Simulator) -> None:
    service.script(wire.answer("4"))
    newer = ChatProvider(base_url=service.base_url, max_tokens_member="max_completion_tokens")
    await hear_once(service, newer, replace(ASK, max_output_tokens=7))
    await newer.aclose()
    body = service.requests()[0].json
    assert body["max_completion_tokens"] == 7
    assert not {"max_tokens", "tools", "tool_choice", "parallel_tool_calls"} & set(body)
    assert "authorization" not in service.requests()[0].headers


async def test_chunks_without_choices_are_legal_at_both_ends(
    service: Simulator, chat: ChatProvider
) -> None:
    """Azure opens with a filter's verdict, without a name or a delta."""
    filtered = chunk(choices=[], response_id="", prompt_filter_results=[{}])
    no_delta = chunk(choices=[{"index": 0, "finish_reason": None}])
    service.script(frames_reply(filtered, no_delta, text("Hi"), *ending()))
    heard = await hear_once(service, chat)
    assert heard.started == ["chatcmpl-1"]
    assert (heard.completed.text, heard.completed.usage) == ("Hi", USAGE)


@pytest.mark.parametrize("content", ["Hi", [{"type": "text", "text": "Hi"}]])
async def test_content_is_text_or_a_list_of_parts(
    service: Simulator, chat: ChatProvider, content: object
) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "secret"}]}
    opening = chunk({"content": [thinking]})
    service.script(frames_reply(opening, chunk({"content": content}), *ending()))
    assert (await hear_once(service, chat)).completed.text == "Hi"


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
async def test_reasoning_is_never_part_of_the_answer(
    service: Simulator, chat: ChatProvider, member: str
) -> None:
    service.script(frames_reply(chunk({member: "secret"}), text("4"), *ending()))
    heard = await hear_once(service, chat)
    assert (heard.text, heard.completed.text) == ("4", "4")


async def test_a_refusal_is_an_answer(service: Simulator, chat: ChatProvider) -> None:
    service.script(
        frames_reply(chunk({"refusal": "I "}), chunk({"refusal": "cannot."}), *ending())
    )
    assert (await hear_once(service, chat)).completed.text == "I cannot."


async def test_other_choices_than_the_one_asked_for_are_left_out(
    service: Simulator, chat: ChatProvider
) -> None:
    def choice(index: int, content: str) -> dict[str, object]:
        return {"index": index, "delta": {"content": content}}

    service.script(
        frames_reply(
            chunk(choices=[choice(0, "yes"), choice(1, "no")]),
            chunk(choices=[choice(1, "no")]),
            *ending(),
        )
    )
    heard = await hear_once(service, chat)
    assert (heard.completed.text, heard.completed.anomalies) == ("yes", 2)


async def test_usage_in_every_chunk_ends_with_the_last(
    service: Simulator, chat: ChatProvider
) -> None:
    service.script(
        frames_reply(
            text("a", usage={"prompt_tokens": 1, "completion_tokens": 1}),
            text("b", usage={"prompt_tokens": 1, "completion_tokens": 2}),
            text("c", usage=None),
            chunk(finish_reason="stop"),
            DONE,
        )
    )
    heard = await hear_once(service, chat)
    assert heard.completed.usage == {"input_tokens": 1, "output_tokens": 2}


@pytest.mark.parametrize("usage", [None, {}, 7, {"prompt_tokens": -1}])
async def test_usage_that_was_not_reported_is_unknown(
    service: Simulator, chat: ChatProvider, usage: object
) -> None:
    frames = [text("a"), chunk(finish_reason="stop"), chunk(choices=[], usage=usage), DONE]
    service.script(frames_reply(*frames))
    assert (await hear_once(service, chat)).completed.usage is None


async def test_an_answer_that_used_all_it_was_allowed_is_incomplete(
    service: Simulator, chat: ChatProvider
) -> None:
    service.script(wire.answer("4"))
    heard = await hear_once(service, chat, replace(ASK, max_output_tokens=5))
    assert heard.completed.incomplete


async def test_a_character_written_as_two_escapes_may_be_cut_between_chunks(
    service: Simulator, chat: ChatProvider
) -> None:
    """Failures H37, H38."""
    pieces = [rb"a\ud83d", rb"\ude00b", rb"\ud83d", rb"c\u0000", rb"\ud83d"]
    frames = [text("@").replace(b"@", piece) for piece in pieces]
    service.script(frames_reply(*frames, *ending()))
    heard = await hear_once(service, chat)
    assert heard.text == heard.completed.text == "a😀b\ufffdc\ufffd\ufffd"
