"""Hears one response through an adapter, and sees at the service that it was asked once."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import pytest

from recovery.errors import ProviderFailed
from tests.simulators.client import Simulator
from turns.providers.types import (
    Cancelled,
    Completed,
    ProviderEvent,
    Started,
    TextDelta,
    TextProvider,
    TextRequest,
    UserText,
)

# A private sentence that scripted services repeat in everything they say about failures.
CANARY: Final = "canary sentence about a private matter sk-canary-key"
# An idle limit that nothing on a busy machine reaches, and one that a test waits out.
PATIENT_SECONDS: Final = 60.0
IMPATIENT_SECONDS: Final = 1.0
ASK: Final = TextRequest(model="scripted", instructions="Be brief.", items=(UserText("2+2?"),))


@dataclass(slots=True)
class Heard:
    """What came out of the adapter."""

    events: list[ProviderEvent] = field(default_factory=list)
    failure: ProviderFailed | None = None

    @property
    def deltas(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, TextDelta)]

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def started(self) -> list[str]:
        return [event.response_id for event in self.events if isinstance(event, Started)]

    @property
    def completed(self) -> Completed:
        assert self.failure is None, (self.failure, self.failure.reason)
        assert isinstance(self.events[-1], Completed)
        return self.events[-1]

    @property
    def cancelled(self) -> Cancelled:
        assert isinstance(self.events[-1], Cancelled)
        return self.events[-1]

    @property
    def failed(self) -> ProviderFailed:
        assert self.failure is not None, self.events[-1]
        assert not any(isinstance(event, Completed | Cancelled) for event in self.events)
        return self.failure

    @property
    def code(self) -> str:
        return self.failed.code.value


async def hear(
    provider: TextProvider,
    request: TextRequest = ASK,
    *,
    on_text: Callable[[str], None] = lambda _: None,
) -> Heard:
    """Return everything `provider` yields for `request`; tell `on_text` the text so far."""
    heard = Heard()
    try:
        async with aclosing(provider.respond(request)) as events:
            async for event in events:
                heard.events.append(event)
                on_text(heard.text)
    except ProviderFailed as failed:
        heard.failure = failed
    return heard


async def hear_once(
    service: Simulator,
    provider: TextProvider,
    request: TextRequest = ASK,
    *,
    on_text: Callable[[str], None] = lambda _: None,
) -> Heard:
    """Return what is heard; fail unless the service was asked exactly once."""
    before = service.posts
    heard = await hear(provider, request, on_text=on_text)
    assert service.posts == before + 1
    return heard


def require_private(heard: Heard, capture: pytest.CaptureFixture[str]) -> None:
    """Fail if the canary left the adapter in a failure, its chain, or a log.

    The log says instead which model failed, with what status, code and reason.
    """
    failure = heard.failed
    (line,) = [
        json.loads(line)
        for line in capture.readouterr().err.splitlines()
        if "provider.failed" in line
    ]
    assert line["model"] == ASK.model
    assert line["error_code"] == failure.code
    assert line["status"] == failure.http_status
    assert line["reason"] == failure.reason
    assert failure.__context__ is None
    assert failure.__cause__ is None
    said = [*traceback.format_exception(failure), repr(vars(failure)), str(failure.args)]
    said.append(json.dumps(line))
    for fragment in (CANARY, CANARY[:12], "sk-canary"):
        assert not any(fragment in text for text in said)
