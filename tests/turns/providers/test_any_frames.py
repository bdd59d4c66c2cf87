"""Whatever a service sends, an answer ends in a verdict or in one of our failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.errors import ProviderFailed
from tests.simulators import chat_wire, responses_wire
from tests.turns.providers.hearing import ASK
from turns.providers.chat_answer import ChatAnswer
from turns.providers.relay import Answer
from turns.providers.responses_answer import ResponsesAnswer
from turns.providers.sse import EventDecoder, ServerSentEvent
from turns.providers.types import Cancelled, Completed, ProviderEvent, TextDelta

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
responses_stream = responses_wire.Stream()
RESPONSES = b"".join(
    [
        *responses_stream.opening(),
        *responses_stream.message("one", " two"),
        *responses_stream.call("calc", '{"a":1}'),
        responses_stream.terminal(),
    ]
)
CHAT = b"".join(
    [
        chat_wire.OPENING,
        chat_wire.text("one"),
        *chat_wire.call(0, "call_1", "calc", '{"a":1}'),
        *chat_wire.ending("tool_calls"),
    ]
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) inside a JSON value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@st.composite
def damaged(draw: st.DrawFn, stream: bytes) -> list[ServerSentEvent]:
    """A stream in which some members are anything, some are gone, and some frames moved."""
    events = list(EventDecoder().feed(stream))
    frames = [None if event.data == "[DONE]" else json.loads(event.data) for event in events]
    everywhere = [place for frame in frames for place in places(frame)]
    for container, key in draw(st.lists(st.sampled_from(everywhere), max_size=3)):
        if isinstance(container, dict) and draw(st.booleans()):
            container.pop(key, None)
        elif isinstance(container, dict) or key < len(container):
            container[key] = draw(json_values)
    kept = [
        event if frame is None else ServerSentEvent(event.name, json.dumps(frame))
        for event, frame in zip(events, frames, strict=True)
    ]
    for _ in range(draw(st.integers(0, 2))):
        moved = draw(st.sampled_from(kept))
        kept.insert(draw(st.integers(0, len(kept))), moved)
    return kept


def require_honest(answer: Answer, events: list[ServerSentEvent]) -> None:
    """Fail unless the answer ends as `types` promises."""
    heard: list[ProviderEvent] = []
    try:
        for event in events:
            heard += answer.take(event)
        heard += answer.close()
    except ProviderFailed:
        assert not any(isinstance(event, Completed | Cancelled) for event in heard)
        return
    *before, verdict = heard
    assert isinstance(verdict, Completed | Cancelled)
    assert not any(isinstance(event, Completed | Cancelled) for event in before)
    if isinstance(verdict, Completed):
        shown = "".join(event.text for event in before if isinstance(event, TextDelta))
        assert verdict.text == shown or verdict.anomalies
        assert verdict.text or verdict.calls or verdict.incomplete
        text = json.dumps([verdict.text, *(call.arguments for call in verdict.calls)])
        assert "\\u0000" not in text
        verdict.text.encode()


# the first example loads Hypothesis' table of characters, which counts as slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damaged(RESPONSES))
def test_any_responses_stream_ends_honestly(events: list[ServerSentEvent]) -> None:
    require_honest(ResponsesAnswer(ASK), events)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(damaged(CHAT))
def test_any_chat_stream_ends_honestly(events: list[ServerSentEvent]) -> None:
    require_honest(ChatAnswer(ASK), events)


@pytest.mark.parametrize(
    ("answer", "stream"), [(ResponsesAnswer, RESPONSES), (ChatAnswer, CHAT)]
)
def test_every_truncation_of_a_stream_is_a_failure(
    answer: type[ResponsesAnswer] | type[ChatAnswer], stream: bytes
) -> None:
    """Failure H32, cut after every byte but the last events'."""
    events = list(EventDecoder().feed(stream))
    last = max(
        index
        for index, event in enumerate(events)
        if "response.completed" in event.data or '"finish_reason": "tool_calls"' in event.data
    )
    for kept in range(last + 1):
        cut = answer(ASK)
        for event in events[:kept]:
            cut.take(event)
        with pytest.raises(ProviderFailed) as failed:
            cut.close()
        assert failed.value.code == "truncated_stream"
