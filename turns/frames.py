"""The frames of the live view: what is sent for a snapshot, and for a change of it.

Each frame is {"type", "cursor", ...}. A client that hands back the cursor of the last frame it
has applied is sent what follows, exactly once; only the last frame of a change carries the
moved revision, so a connection that breaks in between repeats whole objects, never text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from turns import bounds
from turns.panels import Object, Panel, panels
from turns.projection import (
    MISSED_TURNS_MAX,
    SNAPSHOT_MESSAGES,
    Change,
    Cursor,
    Snapshot,
)
from turns.schemas import MessageView, TurnView

# Live text beyond this is not in the snapshot: it follows as text frames.
SNAPSHOT_TEXT_MAX_BYTES: Final = 16 * bounds.KIB
# What all panels together may take of a snapshot: the messages need the rest.
PANELS_MAX_BYTES: Final = 16 * bounds.KIB
# What a text frame holds besides its text, and then some.
ENVELOPE_BYTES: Final = 512
MAX_BYTES: Final = bounds.EVENT_OUT_MAX_BYTES


def encode(kind: str, cursor: Cursor, content: Object) -> str:
    """Return a frame as text."""
    return _json({"type": kind, "cursor": str(cursor), **content})


def resync(cursor: Cursor, reason: str) -> str:
    """Return the frame that says: what you show is behind, a snapshot follows."""
    return encode("resync", cursor, {"reason": reason})


def snapshot_frames(snapshot: Snapshot) -> tuple[list[str], Cursor]:
    """Return the frame that shows a whole conversation, and the cursor of who has seen it."""
    cursor, content = snapshot_content(snapshot)
    return [encode("snapshot", cursor, content)], cursor


def snapshot_content(snapshot: Snapshot) -> tuple[Cursor, Object]:
    """Return what a snapshot frame holds, and its cursor.

    It holds as many of the newest messages as fit; `next` is where older ones begin. Long live
    text is left to the text frames that follow.
    """
    turn = snapshot.turn
    is_open = turn is not None and turn.is_open
    is_long = turn is not None and _size(turn.assistant.text) > SNAPSHOT_TEXT_MAX_BYTES
    cursor = Cursor(
        snapshot.revision,
        int(turn.id) if turn is not None else 0,
        turn.seq if turn is not None and is_open and not is_long else 0,
        ended=turn is not None and not is_open,
    )
    content: Object = {
        "conversation": snapshot.conversation.model_dump(mode="json"),
        "messages": [],
        "next": None,
        "turn": None if turn is None else _turn(turn, with_text=not is_long),
    }
    room = PANELS_MAX_BYTES
    for panel in panels.live():
        shown = _fitting(panel, snapshot.panels.get(panel.key, []), room)
        content[panel.key] = panel.snapshot(shown)
        room -= sum(_size(_json(one)) + 1 for one in shown)
    room = MAX_BYTES - ENVELOPE_BYTES - _size(_json(content))
    for message in snapshot.messages[:SNAPSHOT_MESSAGES]:
        variants = _message(message)
        if message.state == "streaming" and is_long:
            variants = [{**variants[-1], "text": ""}]
        elif turn is None or message.turn_id != turn.id:
            variants = variants[:-1]  # without its words an older one can wait to be asked for
        fitting = next((v for v in variants if _size(_json(v)) < room), None)
        if fitting is None:
            break
        content["messages"].append(fitting)
        room -= _size(_json(fitting)) + 1
    if 0 < len(content["messages"]) < len(snapshot.messages):
        content["next"] = content["messages"][-1]["id"]
    return cursor, content


def change_frames(change: Change, cursor: Cursor) -> tuple[list[str], Cursor] | None:
    """Return what a view at `cursor` is sent, and the cursor it is then at.

    None when nothing but a snapshot can continue it: what it shows was rewritten or folded
    away, it missed too much, or its cursor is not of this history.
    """
    if change.revision < cursor.revision or change.rewritten_revision > cursor.revision:
        return None
    if change.turns is None:
        if (change.turn_id or 0) != cursor.turn_id or not change.is_known:
            return None
        texts, at = _texts(change.chunks, cursor)
        return [_encoded(*one) for one in texts], at

    turns = _turns_since(change, cursor)
    if turns is None:
        return None
    frames: list[_Frame] = []
    at = cursor
    for turn in turns:
        more, at = _turn_frames(change, turn, at)
        frames += more
    frames += [("message", at, _message(message)) for message in change.messages]
    for panel in panels.live():
        objects = change.panels.get(panel.key, [])
        if panel.most is not None and len(objects) > panel.most:
            return None
        frames += [(panel.frame, at, panel.variants(one)) for one in objects]
    if turns and not frames:
        # whatever it was that happened, the view has to be told of the revision
        frames = [("turn", at, _turn_variants(turns[-1]))]

    at = replace(at, revision=change.revision)
    encoded = [_encoded(*one) for one in frames[:-1]]
    encoded += [_encoded(kind, at, variants) for kind, _, variants in frames[-1:]]
    return encoded, at


def _fitting(panel: Panel, objects: Sequence[Object], room: int) -> list[Object]:
    """Return as many of the last `objects` as have room, and as much of each."""
    chosen: list[list[Object]] = []
    for one in reversed(objects[-1:] if panel.single else objects):
        variants = list(panel.variants(one)[panel.heavy :])
        room -= _size(_json(variants[-1])) + 1
        if room < 0:
            break
        chosen.append(variants)
    shown: list[Object] = []
    for variants in chosen:  # each has room for its smallest form; the rest goes to the last
        smallest = _size(_json(variants[-1]))
        sizes = ((v, _size(_json(v)) - smallest) for v in variants)
        fullest, more = next((v, size) for v, size in sizes if size <= max(room, 0))
        room -= more
        shown.append(fullest)
    return shown[::-1]


# A frame before it is encoded: its variants from the fullest to the one that always fits.
_Frame = tuple[str, Cursor, Sequence[Object]]


def _encoded(kind: str, cursor: Cursor, variants: Sequence[Object]) -> str:
    text = ""
    for content in variants:
        text = encode(kind, cursor, content)
        if _size(text) <= MAX_BYTES:
            break
    return text


def _turns_since(change: Change, cursor: Cursor) -> tuple[TurnView, ...] | None:
    """Return the turns a view at `cursor` has to be shown, from the one it knows on.

    None when there are too many, or the one it knows, or its text, is not there any more.
    """
    turns = change.turns or ()
    first = int(turns[0].id) if turns else 0
    if len(turns) > MISSED_TURNS_MAX and first != cursor.turn_id:
        return None
    if cursor.turn_id and first != cursor.turn_id:
        return None
    if first == cursor.turn_id and turns and turns[0].is_open and not change.is_known:
        return None
    return turns


def _turn_frames(change: Change, turn: TurnView, cursor: Cursor) -> tuple[list[_Frame], Cursor]:
    """Return what shows `turn` to a view at `cursor`, which knows it or the one before."""
    is_new = int(turn.id) != cursor.turn_id
    if not is_new and cursor.ended:
        return [], cursor  # an end that was shown does not change
    frames: list[_Frame] = []
    at = Cursor(cursor.revision, int(turn.id)) if is_new else cursor
    if turn.is_open:
        # with the old cursor: who loses the next frame has not been shown this turn
        frames += [("message", cursor, _begun(m)) for m in turn.messages if is_new]
        texts, at = _texts(change.chunks, at)
        frames += texts
    else:
        shown = turn.messages if is_new else turn.messages[-1:]
        frames += [("message", cursor, _message(m)) for m in shown]
        at = Cursor(cursor.revision, int(turn.id), ended=True)
    frames.append(("turn", at, _turn_variants(turn)))
    return frames, at


def _texts(chunks: Iterable[tuple[int, str]], cursor: Cursor) -> tuple[list[_Frame], Cursor]:
    """Return the chunks as text frames, several in one where they fit."""
    frames: list[_Frame] = []
    at, offset = cursor, cursor.offset
    held = ""
    for seq, whole in chunks:
        text, offset = whole[offset:], 0
        if held and not _fits(held + text):
            frames.append(_text(at, held))
            held = ""
        while not _fits(text):
            part = text[: len(text) // 2]
            while not _fits(part):
                part = part[: len(part) // 2]
            at = replace(at, offset=at.offset + len(part))
            frames.append(_text(at, part))
            text = text[len(part) :]
        held += text
        at = replace(at, seq=seq, offset=0)
    if held:
        frames.append(_text(at, held))
    return frames, at


def _text(cursor: Cursor, text: str) -> _Frame:
    content = {"turn_id": str(cursor.turn_id), "seq": cursor.seq, "text": text}
    return ("text", cursor, [content])


def _fits(text: str) -> bool:
    # six bytes for one is the most that JSON makes of text
    room = MAX_BYTES - ENVELOPE_BYTES
    return len(text) * 6 <= room or _size(_json(text)) <= room


def _message(message: MessageView) -> list[Object]:
    """Return the message; without its HTML; without its words, for the client to ask for."""
    whole = message.model_dump(mode="json")
    bare = {**whole, "html": None}
    return [whole, bare, {**bare, "text": None}]


def _begun(message: MessageView) -> list[Object]:
    """Return a message of an open turn. What is there of the answer follows as text frames."""
    variants = _message(message)
    return [{**v, "text": ""} for v in variants] if message.state == "streaming" else variants


def _turn_variants(turn: TurnView) -> list[Object]:
    bare = _turn(turn, with_text=False)
    silent = {**bare, "user": {**bare["user"], "text": None}}
    return [_turn(turn), bare, silent, {**silent, "steps": []}]


def _turn(turn: TurnView, *, with_text: bool = True) -> Object:
    content = turn.model_dump(mode="json")
    if not with_text:
        content["assistant"]["text"] = None
    return content


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(text: str | None) -> int:
    return len((text or "").encode())
