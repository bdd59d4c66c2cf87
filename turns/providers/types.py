"""What a turn asks of a text provider and what it hears back, whatever the wire protocol.

A provider yields, in this order: `Started` at most once, as soon as the service names its
response; any number of `TextDelta`; then exactly one of `Completed` or `Cancelled`. Every other
end is `ProviderFailed`, which keeps the response id and usage reported until then. Text is
storable when it leaves an adapter: no NUL, no lone surrogate.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

# Token counters by name: input_tokens, output_tokens, total_tokens, cached_tokens,
# reasoning_tokens. A counter that was not reported is absent, never zero.
Usage = dict[str, int]


@dataclass(frozen=True, slots=True)
class UserText:
    """What a person wrote."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantText:
    """What the assistant answered earlier."""

    text: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call the model asked for earlier; `arguments` is JSON text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The one outcome of the call with this id."""

    call_id: str
    output: str


Item = UserText | AssistantText | FunctionCall | FunctionResult


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool the model may call; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = True


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One request for one response: the whole history, in order.

    `step` is the sequence of the provider step this request belongs to; calls that arrive
    without an id are named `step:index` after it.
    """

    model: str
    instructions: str
    items: tuple[Item, ...]
    tools: tuple[ToolSchema, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    parallel_tool_calls: bool = False
    max_output_tokens: int | None = None
    step: int = 1


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in a completed response. `arguments` is the model's own text, not yet parsed."""

    call_id: str
    item_id: str | None
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Started:
    """The service has named its response."""

    response_id: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The service has ended its response.

    `text` is the whole visible answer. It equals the deltas put together unless the service
    contradicted itself; then it is what the service said last, and `anomalies` is not 0.
    `anomalies` counts contradictions in the stream: text survives them, but the calls of such
    a response should not be executed. An `incomplete` response was cut by the service and has
    no calls.
    """

    response_id: str | None
    text: str
    calls: tuple[ToolCall, ...]
    usage: Usage | None
    incomplete: bool
    anomalies: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The service has given its response up on somebody's request."""

    response_id: str | None
    usage: Usage | None


ProviderEvent = Started | TextDelta | Completed | Cancelled


class TextProvider(Protocol):
    """A service that answers a request with text and calls."""

    @property
    def api(self) -> str:
        """The protocol spoken, as the receipt records it."""

    def respond(self, request: TextRequest) -> AsyncGenerator[ProviderEvent, None]:
        """Send `request` once and yield what comes back.

        Nothing is ever sent again, whatever happens. Leaving the generator (use
        `contextlib.aclosing`) closes the connection, which stops the service.

        Raises:
            ProviderFailed: the response did not end properly. Text yielded before stays true.
        """

    async def aclose(self) -> None:
        """Close the connections."""
