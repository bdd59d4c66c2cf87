"""Chat completions over HTTP: the adapter of most local servers and gateways.

`store` is not sent: it is off by default here, and strict servers refuse members they do not
know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal, Unpack

from turns.providers.adapter import HttpTextProvider, tool_body
from turns.providers.chat_answer import ChatAnswer
from turns.providers.transport import Connection
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    Item,
    TextRequest,
    ToolSchema,
    UserText,
)


class ChatProvider(HttpTextProvider):
    """Speaks `POST {base_url}/chat/completions`.

    `max_tokens_member` names the limit: local servers know `max_tokens`, OpenAI's reasoning
    models only `max_completion_tokens`.
    """

    protocol = "chat"
    path = "/chat/completions"

    def __init__(
        self,
        *,
        max_tokens_member: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        **connection: Unpack[Connection],
    ) -> None:
        super().__init__(**connection)
        self._max_tokens_member = max_tokens_member

    def encode(self, request: TextRequest) -> bytes:
        """Return the body of the one POST for `request`."""
        body: dict[str, Any] = {
            "model": request.model,
            "messages": _messages(request.instructions, request.items),
            "stream": True,
            "stream_options": {"include_usage": True},
            **tool_body(request, [_tool(tool) for tool in request.tools]),
        }
        if request.max_output_tokens is not None:
            body[self._max_tokens_member] = request.max_output_tokens
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def answer(self, request: TextRequest) -> ChatAnswer:
        """Return the still empty answer to `request`."""
        return ChatAnswer(request)


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _messages(instructions: str, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return the history as messages.

    The calls of one response, and the text before them, are one assistant message; so are two
    texts in a row (an answer and the report of a job), as paragraphs. Two questions in a row
    (the answer between them broke off before its first word) are one of the person's.
    Templates of local models insist that roles take turns.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item:
            case UserText(text):
                _say(messages, "user", text)
            case AssistantText(text):
                _say(messages, "assistant", text)
            case FunctionCall():
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case FunctionResult(call_id, output):
                messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
    return messages


def _say(messages: list[dict[str, Any]], role: str, text: str) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += f"\n\n{text}"
    else:
        messages.append({"role": role, "content": text})


def _call(call: FunctionCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}
