"""The wire frames of chat/completions, as far as they are used. Private to its adapter."""

from __future__ import annotations

from turns.providers.frames import Frame, ProviderId, ToolName


class FunctionFragment(Frame):
    """A piece of a call: its name once, its arguments bit by bit."""

    name: ToolName | None = None
    arguments: str | None = None


class CallFragment(Frame):
    """A piece of the call at `index`; servers leave out index and id, or give all the same."""

    index: int | None = None
    id: ProviderId | None = None
    function: FunctionFragment | None = None


class ContentPart(Frame):
    """A piece of content where a server sends a list of them."""

    type: str
    text: str | None = None
