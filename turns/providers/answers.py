"""What the answers of every protocol have in common: frames, text, counters, call ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from recovery.bounds import storable
from recovery.errors import ErrorCode, ProviderFailed
from turns import bounds
from turns.providers import jsontext
from turns.providers.types import ToolCall, Usage

# What services send after their last event. It ends the transport and proves nothing.
DONE: Final = "[DONE]"
# Far above any limit of a turn, which stores what is past it as refused; below it a runaway
# list of calls would be a transaction of its own size.
CALLS_PER_RESPONSE: Final = 128
# Counters beyond this are noise; it fits every integer type they pass through.
COUNTER_MAX: Final = 10**12
_HIGH_SURROGATES: Final = ("\ud800", "\udbff")


class VisibleText:
    """Text that arrives in pieces which may cut a character in two.

    JSON may write a character as two escapes, and services cut between them. The first half is
    held back until the second arrives; a half that stays alone becomes U+FFFD, as does NUL.
    """

    def __init__(self) -> None:
        self._held = ""

    def add(self, piece: str, *, escaped: bool) -> str:
        """Return what can be shown after `piece`, possibly nothing.

        `escaped` says whether its JSON held a `\\u` escape: without one it cannot hold
        anything that needs repair, and repair is skipped.
        """
        if self._held:
            piece, escaped, self._held = self._held + piece, True, ""
        if not escaped or not piece:
            return piece
        first, last = _HIGH_SURROGATES
        if first <= piece[-1] <= last:
            self._held, piece = piece[-1], piece[:-1]
        return storable(piece)

    def rest(self) -> str:
        """Return what is still held back, as it can be shown when nothing follows."""
        return storable(self._held)


def frame_in(data: str) -> dict[str, Any] | None:
    """Return the JSON object in `data`; None for what some gateways send to keep alive.

    Those are `null`, and comments that a gateway has sent on as data.
    """
    if data[0] == ":":
        return None
    try:
        value = jsontext.decode(data)
    except jsontext.MalformedJson as malformed:
        reason = f"frame: {malformed}"
    else:
        if value is None or isinstance(value, dict):
            return value
        reason = "frame: object"
    raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason=reason)


def error_in(kind: str, frame: dict[str, Any]) -> object | None:
    """Return the error a frame carries, flat, nested or without a type."""
    error = frame.get("error")
    if kind == "error":
        return error or frame
    return None if kind.startswith("response.") else error


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call as the service named it."""

    call_id: str | None
    item_id: str | None
    name: str
    arguments: str


def named_calls(calls: Iterable[RawCall], step: int) -> tuple[tuple[ToolCall, ...], int]:
    """Return the calls of one response under different ids, and how many were repeats.

    A call without an id, or under an id that another call of this response has, is named
    `step:index`. The same call twice under one id is one call: running it twice is worse than
    asking once. Ids that recur in a later response are the ledger's to judge.

    Raises:
        ProviderFailed: a call has no name, or a bound was passed.
    """
    named: dict[str, ToolCall] = {}
    repeats = 0
    for index, call in enumerate(calls):
        if index >= CALLS_PER_RESPONSE:
            raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="calls")
        if not call.name:
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="name: missing")
        arguments = storable(call.arguments)
        if len(arguments.encode()) > bounds.TOOL_ARGUMENTS_MAX_BYTES:
            raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="arguments")
        call_id = call.call_id or f"{step}:{index}"
        first = named.get(call_id)
        if first is not None:
            if (first.name, first.arguments) == (call.name, arguments):
                repeats += 1
                continue
            call_id = f"{step}:{index}"
            while call_id in named:
                call_id = f"{call_id}:{index}"
        named[call_id] = ToolCall(call_id, call.item_id, call.name, arguments)
    return tuple(named.values()), repeats


def counters(**reported: object) -> Usage | None:
    """Return the counters that are whole numbers in range; None when there are none.

    Anything else a service reports as a count is dropped, not guessed at.
    """
    usage = {
        name: value
        for name, value in reported.items()
        if type(value) is int and 0 <= value <= COUNTER_MAX
    }
    return usage or None


def member(value: object, key: str) -> object:
    """Return `value[key]` when `value` is a JSON object that has it, else None."""
    return value.get(key) if isinstance(value, dict) else None


def was_cut(usage: Usage | None, max_output_tokens: int | None) -> bool:
    """Return whether an answer that was called complete used up all it was allowed.

    llama.cpp's server calls such an answer completed.
    """
    if usage is None or max_output_tokens is None:
        return False
    return usage.get("output_tokens", 0) >= max_output_tokens
