"""The wire frames of the Responses API, as far as they are used. Private to its adapter."""

from __future__ import annotations

from typing import Any

from turns.providers.frames import Frame, ProviderId, ToolName


class ContentPart(Frame):
    """A part of a message; parts of other types have neither text."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def visible(self) -> str:
        """What a person should read of it."""
        if self.type == "output_text":
            return self.text or ""
        if self.type == "refusal":
            return self.refusal or ""
        return ""


class MessageItem(Frame):
    """Output item: words for the person."""

    id: ProviderId | None = None
    status: str | None = None
    content: list[ContentPart] | None = None

    @property
    def visible(self) -> str:
        """What a person should read of it."""
        return "".join(part.visible for part in self.content or ())


class CallItem(Frame):
    """Output item: a function call. `call_id` pairs it with its result, `id` does not."""

    id: ProviderId | None = None
    call_id: ProviderId | None = None
    name: ToolName | None = None
    arguments: str | None = None
    status: str | None = None


class Snapshot(Frame):
    """The response object inside lifecycle events. Items stay raw: their types are open."""

    id: ProviderId | None = None
    status: str | None = None
    output: list[dict[str, Any]] | None = None
    error: Any = None
    usage: Any = None
