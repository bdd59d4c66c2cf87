"""The output items of a response while it streams: who is who, and what each has said.

Services leave out item ids, indexes, and the announcements of items, so an item is found by its
id, else by its index, else because it is the last one. A contradiction is counted, never fatal:
the terminal event repeats everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from turns.providers.answers import RawCall
from turns.providers.frames import parse
from turns.providers.responses_frames import CallItem, MessageItem

MESSAGE: Final = "message"
CALL: Final = "function_call"
# How many numbered events are remembered to tell an exact repeat from another event with the
# same number, and how many missing numbers are waited for.
REMEMBERED_EVENTS: Final = 64
MISSING_NUMBERS: Final = 256


@dataclass(slots=True)
class Part:
    """One content part: the pieces that arrived, not yet repaired."""

    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)


@dataclass(slots=True)
class OutputItem:
    """One output item as the stream has described it so far."""

    id: str | None
    index: int | None
    kind: str | None = None
    announced: bool = False
    parts: dict[int, Part] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    call: CallItem | None = None
    message: MessageItem | None = None

    def part(self, content_index: object) -> Part:
        """Return the part at `content_index`; services that leave it out have one part."""
        key = content_index if type(content_index) is int else 0
        return self.parts.setdefault(key, Part())

    @property
    def text(self) -> str:
        """The visible text of a message."""
        streamed = "".join(part.text for _, part in sorted(self.parts.items()))
        return streamed or (self.message.visible if self.message else "")

    @property
    def raw_call(self) -> RawCall:
        """The call this item is; arguments that came only in pieces count as well."""
        call = self.call or CallItem()
        arguments = call.arguments or "".join(self.arguments)
        # an id that came with pieces alone is bounded like any other
        item_id = call.id or parse(CallItem, {"id": self.id}).id
        return RawCall(call.call_id, item_id, call.name or "", arguments)


class OutputItems:
    """All output items of one response; `anomalies` counts what contradicted itself."""

    def __init__(self) -> None:
        self.anomalies = 0
        self._items: list[OutputItem] = []
        self._by_id: dict[str, OutputItem] = {}
        self._by_index: dict[int, OutputItem] = {}

    def find(self, item_id: object, index: object) -> OutputItem | None:
        """Return the item these name, as far as they name one."""
        item = self._by_id.get(item_id) if isinstance(item_id, str) else None
        if item is None and type(index) is int:
            item = self._by_index.get(index)
        if item is None and item_id is None and index is None and self._items:
            item = self._items[-1]
        return item

    def find_or_add(self, item_id: object, index: object) -> OutputItem:
        """Return the item these name, known from now on."""
        return self.find(item_id, index) or self._add(item_id, index)

    def announce(self, raw: object, index: object) -> OutputItem:
        """Take an announced item; one that was known before is an anomaly."""
        item_id = raw.get("id") if isinstance(raw, dict) else None
        item = self._by_id.get(item_id) if isinstance(item_id, str) else None
        if item is None and type(index) is int:
            nearby = self._by_index.get(index)
            item = nearby if nearby and not nearby.announced else None
        if item is None:
            item = self._add(item_id, index)
        else:
            self.anomalies += 1
        item.announced = True
        self._describe(item, raw)
        return item

    def finish(self, raw: object, index: object) -> OutputItem:
        """Take a finished item: what it says replaces what was streamed of a call."""
        item_id = raw.get("id") if isinstance(raw, dict) else None
        item = self.find_or_add(item_id, index)
        self._describe(item, raw)
        return item

    def note_unannounced(self, item_id: object, index: object) -> None:
        """Count a part of an item that was not announced although others were."""
        if any(item.announced for item in self._items) and self.find(item_id, index) is None:
            self.anomalies += 1

    def in_order(self) -> list[OutputItem]:
        """Return the items by index where every item has one, else as they arrived."""
        indexed = [(item.index, item) for item in self._items if item.index is not None]
        if len(indexed) < len(self._items):
            return list(self._items)
        return [item for _, item in sorted(indexed, key=lambda pair: pair[0])]

    def calls(self) -> Iterator[OutputItem]:
        """Yield the items that are function calls, in order."""
        return (item for item in self.in_order() if item.kind == CALL)

    def _add(self, item_id: object, index: object) -> OutputItem:
        item = OutputItem(
            id=item_id if isinstance(item_id, str) else None,
            index=index if type(index) is int else None,
        )
        self._items.append(item)
        if item.id is not None:
            self._by_id[item.id] = item
        if item.index is not None:
            self._by_index.setdefault(item.index, item)
        return item

    @staticmethod
    def _describe(item: OutputItem, raw: object) -> None:
        kind = raw.get("type") if isinstance(raw, dict) else None
        if not isinstance(kind, str):
            return
        item.kind = kind
        if kind == CALL:
            item.call = parse(CallItem, raw)
        elif kind == MESSAGE:
            item.message = parse(MessageItem, raw)


class EventNumbers:
    """Tells repeated events by their sequence numbers, as long as the numbers mean something.

    A service that leaves a number out, or gives every event the same, is not numbering: then
    nothing is concluded. A gap means little (gateways drop events they do not know); an event
    that arrives after a later one is an anomaly, and its text is taken.
    """

    def __init__(self) -> None:
        self.anomalies = 0
        self._usable = True
        self._first = 0
        self._last: int | None = None
        self._missing: set[int] = set()
        self._recent: dict[int, int] = {}

    def repeats(self, number: object, data: str) -> bool:
        """Return whether the event with this number and data was taken before."""
        if not self._usable:
            return False
        if type(number) is not int:
            self._usable = False
            return False
        if self._last is None:
            self._first = self._last = number
        elif number > self._last:
            gap = range(self._last + 1, number)
            if len(gap) + len(self._missing) <= MISSING_NUMBERS:
                self._missing.update(gap)
            self._last = number
        elif number in self._missing or number < self._first:
            self._missing.discard(number)
            self._first = min(self._first, number)
            self.anomalies += 1
        else:
            return self._seen(number, data)
        self._recent[number] = hash(data)
        if len(self._recent) > REMEMBERED_EVENTS:
            del self._recent[next(iter(self._recent))]
        return False

    def _seen(self, number: int, data: str) -> bool:
        known = self._recent.get(number)
        if known == hash(data):
            return True
        if known is None:
            # too long ago to compare; the terminal event will show whether text is missing
            self.anomalies += 1
            return True
        self._usable = False
        if len(self._recent) > 1:
            self.anomalies += 1
        return False
