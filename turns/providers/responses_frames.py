"""The wire frames of the Responses API, as far as they are used. Private to its adapter.

Unknown members are dropped. Values are what the JSON says, never coerced. Only the structural
frames pass here: text deltas, the hot path, are checked by hand in the answer.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from recovery.bounds import storable
from recovery.errors import ErrorCode, ProviderFailed
from turns import bounds


def _at_most(limit_bytes: int) -> AfterValidator:
    def check(value: str) -> str:
        value = storable(value)
        if len(value.encode()) > limit_bytes:
            raise PydanticCustomError("too_long", "too long")
        return value

    return AfterValidator(check)


ProviderId = Annotated[str, _at_most(bounds.PROVIDER_ID_MAX_BYTES)]
ToolName = Annotated[str, _at_most(bounds.TOOL_NAME_MAX_BYTES)]


class Frame(BaseModel):
    """Base of every frame."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class ContentPart(Frame):
    """A part of a message; parts of other types have neither text."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def visible(self) -> str:
        """What a person should read of it."""
        if self.type == "output_text":
            return self.text or ""
        if self.type == "refusal":
            return self.refusal or ""
        return ""


class MessageItem(Frame):
    """Output item: words for the person."""

    id: ProviderId | None = None
    status: str | None = None
    content: list[ContentPart] | None = None

    @property
    def visible(self) -> str:
        """What a person should read of it."""
        return "".join(part.visible for part in self.content or ())


class CallItem(Frame):
    """Output item: a function call. `call_id` pairs it with its result, `id` does not."""

    id: ProviderId | None = None
    call_id: ProviderId | None = None
    name: ToolName | None = None
    arguments: str | None = None
    status: str | None = None


class Snapshot(Frame):
    """The response object inside lifecycle events. Items stay raw: their types are open."""

    id: ProviderId | None = None
    status: str | None = None
    output: list[dict[str, Any]] | None = None
    error: Any = None
    usage: Any = None


FrameT = TypeVar("FrameT", bound=Frame)


def parse(frame: type[FrameT], value: object) -> FrameT:
    """Return `value` as a `frame`.

    Raises:
        ProviderFailed: it is not one; the reason names the field and the rule, not the value.
    """
    try:
        return frame.model_validate(value)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = f"{'.'.join(str(part) for part in first['loc'])}: {first['type']}"
    raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason=reason)
