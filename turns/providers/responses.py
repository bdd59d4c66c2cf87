"""The Responses API over HTTP: the adapter of OpenAI and of every server that speaks it.

The whole history goes out in every request, with `store` off: no state is left at the service
and `previous_response_id`, which few servers keep, is never used. A request is sent once;
there is no idempotency key and no way to attach to a response again, so an unknown outcome is
a failure.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, assert_never

from turns import bounds
from turns.providers.relay import relay
from turns.providers.responses_answer import ResponsesAnswer
from turns.providers.transport import EventStreamClient
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    Item,
    ProviderEvent,
    TextRequest,
    UserText,
)

API: Final = "responses"


class ResponsesProvider:
    """A service at `base_url`, which ends in `/v1` or the like; see `types.TextProvider`."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str = "",
        connect_seconds: float = bounds.PROVIDER_CONNECT_SECONDS,
        idle_seconds: float = bounds.PROVIDER_IDLE_SECONDS,
        max_connections: int = bounds.TURNS_PER_PROCESS + 100,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._client = EventStreamClient(
            base_url=base_url,
            api_key=api_key,
            connect_seconds=connect_seconds,
            idle_seconds=idle_seconds,
            max_connections=max_connections,
            verify=verify,
        )

    @property
    def api(self) -> str:
        """The protocol spoken."""
        return API

    async def respond(self, request: TextRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send `request` once and yield what comes back; see `types.TextProvider`."""
        answer = ResponsesAnswer(request)
        async with aclosing(
            relay(self._client, "/responses", encode(request), answer)
        ) as heard:
            async for event in heard:
                yield event

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def encode(request: TextRequest) -> bytes:
    """Return the body of the one POST for `request`."""
    body: dict[str, Any] = {
        "model": request.model,
        "input": [_item(item) for item in request.items],
        "stream": True,
        "store": False,
    }
    if request.instructions:
        body["instructions"] = request.instructions
    if request.max_output_tokens is not None:
        body["max_output_tokens"] = request.max_output_tokens
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in request.tools
        ]
        body["tool_choice"] = request.tool_choice
        body["parallel_tool_calls"] = request.parallel_tool_calls
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


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
