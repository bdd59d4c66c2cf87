"""One response of the Responses API, put together from its events.

What is streamed is shown at once; what an item says at its end replaces what was streamed of
it, and the terminal event replaces both. Where the terminal event only says more, the rest is
shown as one last delta; where it says something else, the completed text is the terminal one
and the contradiction is counted. A terminal event that lists no output repeats nothing, so
then what was streamed stands. Of the event's type and the response's status the worse one
counts.

Only deltas and the events named below are read. Reasoning is private to the service and is
dropped; it is never sent back either, and call items go back without their item ids, so no
service misses the reasoning that came before them. Every other event is skipped, whatever comes
next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from recovery.bounds import storable
from recovery.errors import ErrorCode, ProviderFailed
from turns.providers import faults
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
from turns.providers.frames import parse
from turns.providers.responses_frames import CallItem, MessageItem, Snapshot
from turns.providers.responses_items import (
    CALL,
    MESSAGE,
    EventNumbers,
    OutputItem,
    OutputItems,
    Part,
)
from turns.providers.sse import ServerSentEvent
from turns.providers.types import (
    Cancelled,
    Completed,
    ProviderEvent,
    Started,
    TextDelta,
    TextRequest,
    ToolCall,
    Usage,
)

TEXT_DELTA: Final = "response.output_text.delta"
REFUSAL_DELTA: Final = "response.refusal.delta"
# Two messages of one answer are two paragraphs.
BETWEEN_MESSAGES: Final = "\n\n"
# The verdicts, the worse the higher.
_SEVERITY: Final = {"completed": 0, "incomplete": 1, "cancelled": 2, "failed": 3}
_TERMINAL: Final = {f"response.{status}": status for status in _SEVERITY}
_OPEN: Final = frozenset({"in_progress", "queued"})


class ResponsesAnswer:
    """The state of one response; see `relay.Answer`."""

    def __init__(self, request: TextRequest) -> None:
        self.response_id: str | None = None
        self.usage: Usage | None = None
        self.ended = False
        self._request = request
        self._anomalies = 0
        self._items = OutputItems()
        self._numbers = EventNumbers()
        self._visible = VisibleText()
        self._shown: list[str] = []
        self._between_due = False
        self._current: tuple[object, object, object] | None = None
        self._part = Part()
        self._status: str | None = None
        self._messages: list[MessageItem] = []
        self._calls: list[CallItem] = []
        self._repeats_output = False
        self._second_verdict: ErrorCode | None = None

    def take(self, event: ServerSentEvent) -> Sequence[ProviderEvent]:
        """Return what `event` adds; see `relay.Answer`."""
        if self.ended:
            self._after_the_end(event)
            return ()
        if event.data == DONE:
            # the transport's end marker: no success, but nothing follows it
            self.ended = True
            return ()
        frame = frame_in(event.data)
        return () if frame is None else self._read(frame, event)

    def _read(self, frame: dict[str, Any], event: ServerSentEvent) -> Sequence[ProviderEvent]:
        data = event.data
        kind = frame.get("type")
        if type(kind) is not str:
            kind = event.name
        if kind not in _TERMINAL and self._numbers.repeats(frame.get("sequence_number"), data):
            return ()
        if kind in {TEXT_DELTA, REFUSAL_DELTA}:
            return self._delta(frame, escaped="\\u" in data)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, frame)
        if kind in _TERMINAL:
            return self._terminal(_TERMINAL[kind], frame)
        error = error_in(kind, frame)
        if error is not None:
            raise ProviderFailed(faults.from_error(error), reason="error_event")
        return ()

    def close(self) -> Sequence[ProviderEvent]:
        """Return the closing events; see `relay.Answer`."""
        if self._status is None:
            raise ProviderFailed(ErrorCode.TRUNCATED_STREAM, reason="no_terminal_event")
        if self._second_verdict is not None:
            raise ProviderFailed(self._second_verdict, reason="after_terminal_event")
        if self._status == "cancelled":
            return (Cancelled(self.response_id, self.usage),)
        rest, text = self._settled_text()
        incomplete = self._status == "incomplete" or was_cut(
            self.usage, self._request.max_output_tokens
        )
        calls = () if incomplete else self._settled_calls()
        if not incomplete and not text and not calls:
            raise ProviderFailed(ErrorCode.EMPTY_OUTPUT, reason="output")
        anomalies = self._anomalies + self._items.anomalies + self._numbers.anomalies
        completed = Completed(self.response_id, text, calls, self.usage, incomplete, anomalies)
        return (TextDelta(rest), completed) if rest else (completed,)

    # what is streamed

    def _delta(self, frame: dict[str, Any], *, escaped: bool) -> Sequence[ProviderEvent]:
        delta = frame.get("delta")
        if type(delta) is not str:
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="delta: string_type")
        where = (
            frame.get("item_id"), frame.get("output_index"), frame.get("content_index")
        )  # fmt: skip
        if where != self._current:
            self._part = self._items.find_or_add(where[0], where[1]).part(where[2])
            self._current = where
        self._part.pieces.append(delta)
        return self._show(delta, escaped=escaped)

    def _text_done(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        text = frame.get("text", frame.get("refusal"))
        if type(text) is not str:
            raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="text: string_type")
        item = self._items.find_or_add(frame.get("item_id"), frame.get("output_index"))
        part = item.part(frame.get("content_index"))
        streamed = part.text
        if not text or text == streamed:
            return ()
        is_last = part is self._part or not part.pieces
        part.pieces[:] = [text]
        if not text.startswith(streamed) or not is_last:
            self._anomalies += 1
            return ()
        self._part, self._current = part, None
        return self._show(text[len(streamed) :], escaped=True)

    def _show(self, piece: str, *, escaped: bool) -> Sequence[ProviderEvent]:
        text = self._visible.add(piece, escaped=escaped)
        if not text:
            return ()
        if self._between_due:
            self._between_due = False
            text = BETWEEN_MESSAGES + text
        self._shown.append(text)
        return (TextDelta(text),)

    def _item_added(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        item = self._items.announce(frame.get("item"), frame.get("output_index"))
        self._current = None
        if item.kind == MESSAGE and self._shown:
            self._between_due = True
        return ()

    def _item_done(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        self._items.finish(frame.get("item"), frame.get("output_index"))
        return ()

    def _part_added(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        self._items.note_unannounced(frame.get("item_id"), frame.get("output_index"))
        return ()

    def _arguments_delta(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        delta = frame.get("delta")
        if type(delta) is str:
            item = self._items.find_or_add(frame.get("item_id"), frame.get("output_index"))
            item.arguments.append(delta)
        return ()

    def _arguments_done(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        arguments = frame.get("arguments")
        if type(arguments) is str and arguments:
            item = self._items.find_or_add(frame.get("item_id"), frame.get("output_index"))
            item.arguments[:] = [arguments]
        return ()

    # the response and its end

    def _lifecycle(self, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        if not isinstance(frame.get("response"), dict):
            return ()
        return self._identify(parse(Snapshot, frame["response"]))

    def _identify(self, snapshot: Snapshot) -> Sequence[ProviderEvent]:
        usage = _usage(snapshot.usage)
        if usage is not None:
            self.usage = usage
        if not snapshot.id:
            return ()
        if self.response_id is None:
            self.response_id = snapshot.id
            return (Started(snapshot.id),)
        if self.response_id != snapshot.id:
            raise ProviderFailed(ErrorCode.RESPONSE_ID_CONFLICT, reason="response.id")
        return ()

    def _terminal(self, status: str, frame: dict[str, Any]) -> Sequence[ProviderEvent]:
        if status == "failed":
            self._lifecycle(frame)
            error = member(frame.get("response"), "error")
            raise ProviderFailed(faults.from_error(error), reason="response.failed")
        snapshot = parse(Snapshot, frame.get("response"))
        started = self._identify(snapshot)
        said = snapshot.status
        if said in _OPEN:
            self._anomalies += 1
        elif said is not None:
            if said not in _SEVERITY:
                raise ProviderFailed(ErrorCode.PROVIDER_FAILED, reason="response.status")
            status = max(status, said, key=_SEVERITY.__getitem__)
        if status == "failed":
            raise ProviderFailed(faults.from_error(snapshot.error), reason="response.status")
        self._take_output(snapshot.output or ())
        if status == "completed" and self._has_incomplete_item():
            status = "incomplete"
        self._status, self.ended = status, True
        return started

    def _take_output(self, output: Iterable[dict[str, Any]]) -> None:
        for raw in output:
            self._repeats_output = True
            kind = raw.get("type")
            if kind == MESSAGE:
                self._messages.append(parse(MessageItem, raw))
            elif kind == CALL:
                self._calls.append(parse(CallItem, raw))

    def _has_incomplete_item(self) -> bool:
        statuses = {item.status for item in self._messages}
        return "incomplete" in statuses.union(item.status for item in self._calls)

    def _after_the_end(self, event: ServerSentEvent) -> None:
        if event.data == DONE:
            return
        try:
            frame = frame_in(event.data)
        except ProviderFailed:
            frame = {}
        if frame is None:
            return
        kind = frame.get("type")
        if type(kind) is not str:
            kind = event.name
        error = error_in(kind, frame)
        if kind == "response.failed":
            error = member(frame.get("response"), "error") or {}
        if error is not None:
            self._second_verdict = faults.from_error(error)
        elif kind in _TERMINAL:
            self._second_verdict = self._second_verdict or ErrorCode.TERMINAL_EVENT_REPEATED
        else:
            self._anomalies += 1

    # the verdict

    def _settled_text(self) -> tuple[str, str]:
        """Return what is still to be shown, and the whole text."""
        shown = "".join(self._shown)
        texts = _storable_texts(message.visible for message in self._messages)
        if not texts:
            texts = _storable_texts(item.text for item in self._items.in_order())
        said = BETWEEN_MESSAGES.join(texts)
        if said == shown or "".join(texts) == shown:
            return "", shown
        if said.startswith(shown):
            return said[len(shown) :], said
        self._anomalies += 1
        return "", said

    def _settled_calls(self) -> tuple[ToolCall, ...]:
        streamed = list(self._items.calls())
        if self._repeats_output:
            calls = [self._agreed(index, streamed) for index in range(len(self._calls))]
            self._anomalies += len(calls) < len(streamed)
        else:
            calls = [item.raw_call for item in streamed]
        named, repeats = named_calls(calls, self._request.step)
        self._anomalies += repeats
        return named

    def _agreed(self, index: int, streamed: Sequence[OutputItem]) -> RawCall:
        """Return the terminal event's call, with the streamed arguments where it has none."""
        call = self._calls[index]
        known = next((item for item in streamed if call.id and item.id == call.id), None)
        if known is None and len(streamed) == len(self._calls):
            # some services draw new ids for the terminal event
            known = streamed[index]
        arguments = call.arguments or ""
        if known is not None and (pieces := known.raw_call.arguments) != arguments:
            self._anomalies += bool(pieces and arguments)
            arguments = arguments or pieces
        return RawCall(call.call_id, call.id, call.name or "", arguments)


def _usage(reported: object) -> Usage | None:
    return counters(
        input_tokens=member(reported, "input_tokens"),
        output_tokens=member(reported, "output_tokens"),
        total_tokens=member(reported, "total_tokens"),
        cached_tokens=member(member(reported, "input_tokens_details"), "cached_tokens"),
        reasoning_tokens=member(member(reported, "output_tokens_details"), "reasoning_tokens"),
    )


def _storable_texts(texts: Iterable[str]) -> list[str]:
    return [storable(text) for text in texts if text]


_HANDLERS: Final[
    dict[str, Callable[[ResponsesAnswer, dict[str, Any]], Sequence[ProviderEvent]]]
] = {
    "response.created": ResponsesAnswer._lifecycle,
    "response.in_progress": ResponsesAnswer._lifecycle,
    "response.queued": ResponsesAnswer._lifecycle,
    "response.output_item.added": ResponsesAnswer._item_added,
    "response.output_item.done": ResponsesAnswer._item_done,
    "response.content_part.added": ResponsesAnswer._part_added,
    "response.output_text.done": ResponsesAnswer._text_done,
    "response.refusal.done": ResponsesAnswer._text_done,
    "response.function_call_arguments.delta": ResponsesAnswer._arguments_delta,
    "response.function_call_arguments.done": ResponsesAnswer._arguments_done,
}
