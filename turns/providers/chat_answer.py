"""One chat/completions response, put together from its chunks.

The verdict is the finish reason, and it needs the stream's proper end as well: `[DONE]` or a
clean end of the body. Text with an end marker but without a finish reason was cut, by the same
rule every time (failure H35). A finish reason that is repeated, as some servers do beside the
usage, is one; two different ones are a failure. There is no snapshot to compare with, so what
was streamed is the text.

Calls come in fragments. A fragment belongs to the call at its index; where servers give every
call the same index or none, another id, or a name after complete arguments, begins another
call. Reasoning fields, which no standard names, are private to the service and are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from recovery.bounds import storable
from recovery.errors import ErrorCode, ProviderFailed
from turns import bounds
from turns.providers import faults, jsontext
from turns.providers.answers import (
    DONE,
    RawCall,
    VisibleText,
    counters,
    error_in,
    frame_in,
    member,
    named_calls,
    was_cut,
)
from turns.providers.chat_frames import CallFragment, ContentPart
from turns.providers.frames import parse
from turns.providers.sse import ServerSentEvent
from turns.providers.types import (
    Completed,
    ProviderEvent,
    Started,
    TextDelta,
    TextRequest,
    Usage,
)

# finish reason -> whether the answer was cut; any other reason is a failure
_FINISHED: Final = {
    "stop": False,
    "tool_calls": False,
    "function_call": False,
    "length": True,
    "content_filter": True,
}


@dataclass(slots=True)
class GrowingCall:
    """A call whose fragments are still arriving."""

    call_id: str | None = None
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object already."""
        try:
            return isinstance(jsontext.decode("".join(self.arguments)), dict)
        except jsontext.MalformedJson:
            return False


class ChatAnswer:
    """The state of one response; see `relay.Answer`."""

    def __init__(self, request: TextRequest) -> None:
        self.response_id: str | None = None
        self.usage: Usage | None = None
        self.ended = False
        self._request = request
        self._anomalies = 0
        self._visible = VisibleText()
        self._shown: list[str] = []
        self._calls: list[GrowingCall] = []
        self._by_index: dict[int, GrowingCall] = {}
        self._finish_reason: str | None = None
        self._second_verdict: ErrorCode | None = None

    def take(self, event: ServerSentEvent) -> Sequence[ProviderEvent]:
        """Return what `event` adds; see `relay.Answer`."""
        if self.ended:
            self._after_the_end(event)
            return ()
        if event.data == DONE:
            self.ended = True
            return ()
        frame = frame_in(event.data)
        if frame is None:
            return ()
        error = error_in(event.name, frame)
        if error is not None:
            raise ProviderFailed(faults.from_error(error), reason="error_event")
        started = self._identify(frame.get("id"))
        usage = _usage(frame.get("usage"))
        if usage is not None:
            self.usage = usage
        choice = self._choice(frame)
        if choice is None:
            return started
        escaped = "\\u" in event.data
        delta = self._delta(choice.get("delta"), escaped=escaped)
        self._finish(choice.get("finish_reason"))
        return (*started, *delta) if started else delta

    def close(self) -> Sequence[ProviderEvent]:
        """Return the closing events; see `relay.Answer`."""
        if self._finish_reason is None:
            raise ProviderFailed(ErrorCode.TRUNCATED_STREAM, reason="no_finish_reason")
        if self._second_verdict is not None:
            raise ProviderFailed(self._second_verdict, reason="after_finish_reason")
        rest = self._visible.rest()
        text = "".join(self._shown) + rest
        incomplete = _FINISHED[self._finish_reason] or was_cut(
            self.usage, self._request.max_output_tokens
        )
        calls, repeats = ((), 0) if incomplete else named_calls(self._raw_calls(), self._step)
        if not incomplete and not text and not calls:
            raise ProviderFailed(ErrorCode.EMPTY_OUTPUT, reason="choices")
        completed = Completed(
            self.response_id, text, calls, self.usage, incomplete, self._anomalies + repeats
        )
        return (TextDelta(rest), completed) if rest else (completed,)

    @property
    def _step(self) -> int:
        return self._request.step

    def _raw_calls(self) -> list[RawCall]:
        return [
            RawCall(call.call_id, None, call.name, "".join(call.arguments))
            for call in self._calls
        ]

    def _identify(self, response_id: object) -> Sequence[ProviderEvent]:
        # a filter's verdict on the prompt comes before the response has a name
        if (
            response_id == self.response_id
            or not isinstance(response_id, str)
            or not response_id
        ):
            return ()
        response_id = storable(response_id)
        if len(response_id.encode()) > bounds.PROVIDER_ID_MAX_BYTES:
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="id: too_long")
        if self.response_id is None:
            self.response_id = response_id
            return (Started(response_id),)
        if self.response_id != response_id:
            raise ProviderFailed(ErrorCode.RESPONSE_ID_CONFLICT, reason="id")
        return ()

    def _choice(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        """Return the one choice we asked for, None in a chunk without one."""
        choices = frame.get("choices")
        if not choices:
            return None
        if not isinstance(choices, list) or not isinstance(choices[0], dict):
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="choices: list_type")
        if len(choices) == 1 and choices[0].get("index", 0) == 0:
            return choices[0]
        self._anomalies += 1
        ours: list[dict[str, Any]] = [one for one in choices if member(one, "index") == 0]
        return ours[0] if ours else None

    def _delta(self, delta: object, *, escaped: bool) -> Sequence[ProviderEvent]:
        if not isinstance(delta, dict):
            return ()
        pieces = [
            _text(delta.get("content"), "content"),
            _text(delta.get("refusal"), "refusal"),
        ]
        fragments = delta.get("tool_calls") or ()
        if delta.get("function_call"):
            fragments = [{"index": 0, "function": delta["function_call"]}]
        if not isinstance(fragments, list | tuple):
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="tool_calls: list_type")
        if self._finish_reason is not None:
            self._anomalies += bool(fragments or "".join(pieces))
            return ()
        for fragment in fragments:
            self._grow(parse(CallFragment, fragment))
        text = self._visible.add("".join(pieces), escaped=escaped)
        if not text:
            return ()
        self._shown.append(text)
        return (TextDelta(text),)

    def _grow(self, fragment: CallFragment) -> None:
        name = fragment.function.name if fragment.function else None
        arguments = fragment.function.arguments if fragment.function else None
        call = self._call_of(fragment, name)
        call.call_id = call.call_id or fragment.id
        if name and call.name and name != call.name:
            self._anomalies += 1
        call.name = call.name or name or ""
        if arguments:
            call.arguments.append(arguments)

    def _call_of(self, fragment: CallFragment, name: str | None) -> GrowingCall:
        if fragment.index is not None:
            known = self._by_index.get(fragment.index)
        else:
            known = self._calls[-1] if self._calls else None
        if known is not None:
            another_id = bool(fragment.id and known.call_id and fragment.id != known.call_id)
            named_again = bool(name and known.name and not fragment.id and known.is_whole)
            if not another_id and not named_again:
                return known
        call = GrowingCall()
        self._calls.append(call)
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    def _finish(self, reason: object) -> None:
        # some servers write "" where the schema has null
        if not reason:
            return
        if not isinstance(reason, str) or reason not in _FINISHED:
            raise ProviderFailed(ErrorCode.PROVIDER_FAILED, reason="finish_reason")
        if self._finish_reason not in {None, reason}:
            raise ProviderFailed(ErrorCode.TERMINAL_EVENT_REPEATED, reason="finish_reason")
        self._finish_reason = reason

    def _after_the_end(self, event: ServerSentEvent) -> None:
        if event.data == DONE:
            return
        try:
            frame = frame_in(event.data)
        except ProviderFailed:
            frame = {}
        if frame is None:
            return
        error = error_in(event.name, frame)
        choices = frame.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if error is not None:
            self._second_verdict = faults.from_error(error)
        elif member(choice, "finish_reason"):
            self._second_verdict = self._second_verdict or ErrorCode.TERMINAL_EVENT_REPEATED
        else:
            self._anomalies += 1


def _text(content: object, where: str) -> str:
    """Return the visible text of a content member: text, nothing, or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [parse(ContentPart, part) for part in content]
        return "".join(part.text or "" for part in parts if part.type == "text")
    raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason=f"{where}: string_type")


def _usage(reported: object) -> Usage | None:
    if reported is None:
        return None
    return counters(
        input_tokens=member(reported, "prompt_tokens"),
        output_tokens=member(reported, "completion_tokens"),
        total_tokens=member(reported, "total_tokens"),
        cached_tokens=member(member(reported, "prompt_tokens_details"), "cached_tokens"),
        reasoning_tokens=member(
            member(reported, "completion_tokens_details"), "reasoning_tokens"
        ),
    )
