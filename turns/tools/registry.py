"""Which tools a model may call, and how each is called.

A tool says what it does to the world (its effect) and where it runs. Read-only tools may run
side by side; the others run one at a time. A tool starts at most once: its step is `running` in
the database before it is called, and a call whose outcome was not committed is never made
again.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from recovery.errors import ErrorCode
from turns import bounds
from turns.models import ToolStep
from turns.providers import jsontext
from turns.providers.types import ToolSchema

State: Final = ToolStep.State
Effect: Final = ToolStep.Effect

# Text, whole or in pieces. Pieces are taken until the bound and no further.
Result = str | Iterable[str] | AsyncIterable[str]


class Arguments(BaseModel):
    """What a tool takes: declared once, shown to the model, checked at the call."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


ArgumentsT = TypeVar("ArgumentsT", bound=Arguments)


@dataclass(frozen=True, slots=True)
class Invocation(Generic[ArgumentsT]):
    """One call, on whose behalf, and the key under which an effect outside is sent.

    The call sees the conversation as it was before the message `before_message_id`; where no
    message asked for the work, `asked_at` is when it was admitted.
    """

    owner_id: int
    conversation_id: int
    before_message_id: int
    key: UUID
    arguments: ArgumentsT
    asked_at: datetime | None = None


class ToolFailed(Exception):
    """A tool did not do what was asked. `result` is told to the model; keep it short and
    public.

    `state` is how the step ends: `failed`, `refused` (not allowed), `unavailable` (cannot work
    now), or `interrupted` when it is not known whether the effect took place.
    """

    def __init__(
        self, code: ErrorCode, *, state: ToolStep.State = State.FAILED, result: str = ""
    ) -> None:
        super().__init__(code.value)
        self.code = code
        self.state = state
        self.result = result or str(code.label)


@dataclass(frozen=True, slots=True)
class Tool(Generic[ArgumentsT]):
    """A tool and its contract.

    `runs` says where `call` is called: a coroutine function on the event loop, a function on
    the executor of short database work, or a blocking function in a thread of its own. Nothing
    that blocks may run on the loop: it would hold up every turn of the process.
    """

    name: str
    description: str
    arguments: type[ArgumentsT]
    effect: ToolStep.Effect
    call: Callable[[Invocation[ArgumentsT]], Result | Awaitable[Result]]
    runs: Literal["on_loop", "in_database_thread", "in_own_thread"] = "on_loop"
    timeout_seconds: float = bounds.TOOL_TIMEOUT_SECONDS

    @property
    def reads_only(self) -> bool:
        """Whether calling it twice, or beside others, changes nothing."""
        return self.effect == Effect.READ

    @property
    def schema(self) -> ToolSchema:
        """What the model is told about it.

        A service's strict mode knows no optional fields; a tool that has some does without.
        What a call brings is checked here in either case.
        """
        parameters = {"required": [], **self.arguments.model_json_schema()}
        optional = parameters["properties"].keys() - set(parameters["required"])
        return ToolSchema(self.name, self.description, parameters, strict=not optional)

    def parse(self, arguments: str) -> ArgumentsT:
        """Return the arguments of a call.

        Raises:
            ToolFailed: they are not what the tool takes. The message names fields, never
            values.
        """
        reason = "not one JSON object"
        try:
            return self.arguments.model_validate(jsontext.decode_arguments(arguments or "{}"))
        except jsontext.MalformedJson:
            pass
        except ValidationError as refused:
            errors = refused.errors(
                include_input=False, include_url=False, include_context=False
            )
            reason = "; ".join(
                f"{'.'.join(str(part) for part in error['loc'])[:64]}: {error['type']}"
                for error in errors[:5]
            )
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS,
            result=f"The arguments were not accepted: {reason}.",
        )


class Registry:
    """The tools that some work may use, by name."""

    def __init__(self, tools: Iterable[Tool[Any]] = ()) -> None:
        self._tools: dict[str, Tool[Any]] = {}
        self._refused: dict[str, ErrorCode] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool[Any]) -> None:
        """Offer `tool` to all work that starts from now on.

        Raises:
            ValueError: the name is taken or too long.
        """
        if len(tool.name.encode()) > bounds.TOOL_NAME_MAX_BYTES or tool.name in self._tools:
            raise ValueError(f"tool name {tool.name!r} is taken or too long")
        self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool[Any]]:
        return iter(self._tools.values())

    def without(self, names: Iterable[str], because: ErrorCode) -> Registry:
        """Return a registry of the other tools; a call of one of `names` ends refused."""
        refused = dict.fromkeys(names, because)
        others = Registry(tool for tool in self if tool.name not in refused)
        others._refused = {**self._refused, **refused}
        return others

    def get(self, name: str) -> Tool[Any] | None:
        """Return the tool called `name`, None when there is none."""
        return self._tools.get(name)

    def require(self, name: str) -> Tool[Any]:
        """Return the tool called `name`.

        Raises:
            ToolFailed: there is none, or it is not for this work.
        """
        if name in self._refused:
            raise ToolFailed(self._refused[name], state=State.REFUSED)
        tool = self._tools.get(name)
        if tool is None:
            raise ToolFailed(ErrorCode.UNKNOWN_TOOL, state=State.UNAVAILABLE)
        return tool

    def effect_of(self, name: str) -> ToolStep.Effect:
        """Return what calling `name` does to the world; an unknown tool is never called."""
        tool = self._tools.get(name)
        return Effect.READ if tool is None else tool.effect

    def schemas(self) -> tuple[ToolSchema, ...]:
        """Return what a model is offered."""
        return tuple(tool.schema for tool in self)
