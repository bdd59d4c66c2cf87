"""Server-sent events out of bytes, in bounded memory (WHATWG event-stream).

Lines end with LF, CR or CRLF and nothing else: text methods also split at U+2028 and friends,
which are legal inside JSON. Bytes are decoded per event, so a character cut by the network is
whole again. Three rules of our own:

- UTF-8 is strict. A stream with other bytes is damaged and is refused, not repaired.
- An event without data is skipped; comments are only signs of life.
- What the stream leaves without its closing blank line never happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from recovery.errors import ErrorCode, ProviderFailed
from turns import bounds

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LF: Final = 0x0A
_CR: Final = 0x0D
_SPACE: Final = 0x20


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One dispatched event. `name` is empty when the stream gave none; `data` never is."""

    name: str
    data: str


class EventDecoder:
    """Turns the chunks of one response into its events, wherever the chunks were cut.

    The work is linear in the bytes, also when they arrive one by one.
    """

    def __init__(
        self,
        *,
        line_max_bytes: int = bounds.SSE_LINE_MAX_BYTES,
        event_max_bytes: int = bounds.SSE_EVENT_MAX_BYTES,
        response_max_bytes: int = bounds.RESPONSE_MAX_BYTES,
    ) -> None:
        self._line_max_bytes = line_max_bytes
        self._event_max_bytes = event_max_bytes
        self._response_max_bytes = response_max_bytes
        self._received_bytes = 0
        self._tail = bytearray()
        self._after_cr = False
        self._first_line = True
        self._name = b""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that `chunk` completes, in order.

        Raises:
            ProviderFailed: a bound was passed (`response_too_large`) or an event is not UTF-8
                (`provider_protocol`). The events before it have been yielded.
        """
        self._received_bytes += len(chunk)
        if self._received_bytes > self._response_max_bytes:
            raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="response")
        for line in self._lines(chunk):
            if line:
                self._field(line)
            elif self._data or self._name:
                event = self._dispatch()
                if event is not None:
                    yield event

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == _LF:
                chunk = chunk[1:]
        if b"\n" not in chunk and b"\r" not in chunk:
            self._keep(chunk)
            return []
        if self._tail:
            chunk = bytes(self._tail) + chunk
            self._tail.clear()
        # bytes.splitlines knows LF, CR and CRLF only, unlike str.splitlines
        lines = chunk.splitlines()
        if chunk[-1] == _CR:
            self._after_cr = True
        elif chunk[-1] != _LF:
            self._keep(lines.pop())
        if self._first_line:
            self._first_line = False
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        return lines

    def _keep(self, part: bytes) -> None:
        self._tail += part
        if len(self._tail) > self._line_max_bytes:
            raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="line")

    def _field(self, line: bytes) -> None:
        if len(line) > self._line_max_bytes:
            raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="line")
        name, _, value = line.partition(b":")
        if value and value[0] == _SPACE:
            value = value[1:]
        if name == b"data":
            self._data_bytes += len(value) + 1
            if self._data_bytes > self._event_max_bytes + 1:
                raise ProviderFailed(ErrorCode.RESPONSE_TOO_LARGE, reason="event")
            self._data.append(value)
        elif name == b"event":
            self._name = value

    def _dispatch(self) -> ServerSentEvent | None:
        data = b"\n".join(self._data)
        name, self._name, self._data_bytes = self._name, b"", 0
        self._data.clear()
        if not data:
            return None
        try:
            return ServerSentEvent(name.decode(), data.decode())
        except UnicodeDecodeError:
            pass
        raise ProviderFailed(ErrorCode.PROVIDER_PROTOCOL, reason="utf8")
