"""What the adapters over HTTP share: a service and the shape of `types.TextProvider`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, Unpack

from turns.providers.relay import Answer, relay
from turns.providers.transport import Connection, EventStreamClient
from turns.providers.types import ProviderEvent, TextRequest


class HttpTextProvider(ABC):
    """A service at a base URL that ends in `/v1` or the like; see `types.TextProvider`."""

    protocol: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, **connection: Unpack[Connection]) -> None:
        self._client = EventStreamClient(**connection)

    @property
    def api(self) -> str:
        """The protocol spoken."""
        return self.protocol

    def respond(self, request: TextRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send `request` once and yield what comes back; see `types.TextProvider`."""
        return relay(
            self._client,
            self.path,
            self.encode(request),
            self.answer(request),
            model=request.model,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @abstractmethod
    def encode(self, request: TextRequest) -> bytes:
        """Return the body of the one POST for `request`."""

    @abstractmethod
    def answer(self, request: TextRequest) -> Answer:
        """Return the still empty answer to `request`."""


def tool_body(request: TextRequest, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the members of a body that offer `tools`; none when there are none."""
    if not tools:
        return {}
    return {
        "tools": tools,
        "tool_choice": request.tool_choice,
        "parallel_tool_calls": request.parallel_tool_calls,
    }
