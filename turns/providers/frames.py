"""What the wire frames of every protocol share. Private to the adapters.

Unknown members are dropped. Values are what the JSON says, never coerced. Text deltas, the hot
path, do not pass here: the answers check them by hand.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

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
