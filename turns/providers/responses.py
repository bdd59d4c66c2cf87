"""The Responses API over HTTP: the adapter of OpenAI and of every server that speaks it.

The whole history goes out in every request, with `store` off: no state is left at the service
and `previous_response_id`, which few servers keep, is never used. A request is sent once;
there is no idempotency key and no way to attach to a response again, so an unknown outcome is
a failure.
"""

from __future__ import annotations

import json
from typing import Any, assert_never

from turns.providers.adapter import HttpTextProvider, tool_body
from turns.providers.responses_answer import ResponsesAnswer
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    Item,
    TextRequest,
    ToolSchema,
    UserText,
)


class ResponsesProvider(HttpTextProvider):
    """Speaks `POST {base_url}/responses`."""

    protocol = "responses"
    path = "/responses"

    def encode(self, request: TextRequest) -> bytes:
        """Return the body of the one POST for `request`."""
        body: dict[str, Any] = {
            "model": request.model,
            "input": [_item(item) for item in request.items],
            "stream": True,
            "store": False,
            **tool_body(request, [_tool(tool) for tool in request.tools]),
        }
        if request.instructions:
            body["instructions"] = request.instructions
        if request.max_output_tokens is not None:
            body["max_output_tokens"] = request.max_output_tokens
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    def answer(self, request: TextRequest) -> ResponsesAnswer:
        """Return the still empty answer to `request`."""
        return ResponsesAnswer(request)


def _tool(tool: ToolSchema) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _item(item: Item) -> dict[str, Any]:
    match item:
        case UserText(text):
            content = [{"type": "input_text", "text": text}]
            return {"type": "message", "role": "user", "content": content}
        case AssistantText(text):
            part = {"type": "output_text", "text": text, "annotations": []}
            return {"type": "message", "role": "assistant", "content": [part]}
        case FunctionCall(call_id, name, arguments):
            # without its item id, which would tie it to a reasoning item we did not keep
            return {
                "type": "function_call",
                "call_id": call_id,
                "name": name,
                "arguments": arguments,
            }
        case FunctionResult(call_id, output):
            return {"type": "function_call_output", "call_id": call_id, "output": output}
        case _:
            assert_never(item)
