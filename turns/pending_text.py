"""Text of a live turn on its way to the database: fresh, then under a seq, then written."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from recovery.bounds import cut_utf8
from recovery.errors import ErrorCode, StaleFence
from recovery.fences import Fence
from turns import bounds


class TextNotStored(Exception):
    """A turn's text could not be kept and the turn cannot go on; `code` is how it ends."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.value)
        self.code = code


@dataclass(slots=True, eq=False)
class Piece:
    """Text under the seq it will always have."""

    turn: PendingText
    seq: int
    text: str
    size: int
    sent: bool = False


@dataclass(slots=True, eq=False)
class PendingText:
    """The text of one live turn that is not durable yet."""

    fence: Fence
    conversation_id: int
    fresh: list[str] = field(default_factory=list)
    fresh_bytes: int = 0
    pieces: deque[Piece] = field(default_factory=deque)
    held_bytes: int = 0
    numbered: int = 0
    written: int = 0
    failure: StaleFence | TextNotStored | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def number(self) -> None:
        """Give the fresh text its seqs, a chunk at most each."""
        rest, self.fresh, self.fresh_bytes = "".join(self.fresh), [], 0
        while rest:
            text = cut_utf8(rest, bounds.CHUNK_MAX_BYTES)
            rest = rest[len(text) :]
            self.numbered += 1
            self.pieces.append(Piece(self, self.numbered, text, len(text.encode())))

    def fail(self, failure: StaleFence | TextNotStored) -> None:
        """End this text: nothing of what is held will be written any more."""
        self.failure = failure
        self.fresh.clear()
        self.pieces.clear()
        self.fresh_bytes = self.held_bytes = 0
        self.changed.set()

    def settle(self, piece: Piece) -> None:
        """Note that `piece` is committed. A text that has failed meanwhile holds none."""
        if self.failure is None:
            self.pieces.remove(piece)
            self.held_bytes -= piece.size
        self.written = max(self.written, piece.seq)
        self.changed.set()
