"""JSON as PostgreSQL understands it, which is less than Python lets through.

Refused: NaN and Infinity, numbers beyond a double, integers of thousands of digits, nesting
that exhausts the stack, control characters inside strings. Errors say only that; the offending
text stays in the caller's hands. A repeated key means its last value in a frame, as every
client reads it, and is refused in arguments, where two readers could disagree about what a
tool was told.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from recovery.bounds import storable

ARGUMENTS_MAX_DEPTH: Final = 64


class MalformedJson(ValueError):
    """The text is not JSON we accept; the message is one of our own words."""


def decode(text: str) -> Any:
    """Return the value of `text`.

    Raises:
        MalformedJson: it is not acceptable JSON.
    """
    return _decode(_FRAMES, text)


def decode_arguments(text: str) -> dict[str, Any]:
    """Return the JSON object in `text` with every string storable.

    Raises:
        MalformedJson: it is not an object, repeats a key, or is nested too deeply.
    """
    value = _decode(_ARGUMENTS, text)
    if not isinstance(value, dict):
        raise MalformedJson("object")
    cleaned: dict[str, Any] = _storable(value, ARGUMENTS_MAX_DEPTH)
    return cleaned


def _decode(decoder: json.JSONDecoder, text: str) -> Any:
    reason = "json"
    try:
        return decoder.decode(text)
    except MalformedJson as refused:
        reason = str(refused)
    except ValueError:
        # json's own error carries the whole document; it must not be chained
        pass
    except RecursionError:
        reason = "depth"
    raise MalformedJson(reason)


def _refuse_constant(_name: str) -> NoReturn:
    raise MalformedJson("constant")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedJson("range")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise MalformedJson("repeated_key")
    return value


def _storable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict | list) and depth == 0:
        raise MalformedJson("depth")
    if isinstance(value, dict):
        return {storable(key): _storable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item, depth - 1) for item in value]
    return value


_FRAMES: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ARGUMENTS: Final = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique
)
