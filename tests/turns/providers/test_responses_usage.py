"""Token counts are what was reported or unknown, and tell an answer that was cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulators import responses_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import event, frames_reply, message, response
from tests.turns.providers.hearing import ASK, hear_once
from turns.providers.responses import ResponsesProvider


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        (None, None),
        ({}, None),
        ("many", None),
        ([1], None),
        ({"input_tokens": -1, "output_tokens": 2.5, "total_tokens": 10**13}, None),
        ({"input_tokens": True, "output_tokens": "7", "total_tokens": 3}, {"total_tokens": 3}),
        ({"input_tokens": 0, "input_tokens_details": None}, {"input_tokens": 0}),
    ],
)
async def test_usage_is_what_was_reported_or_unknown(
    service: Simulator, provider: ResponsesProvider, reported: object, kept: object
) -> None:
    terminal = event(
        "response.completed", response={**response([message("4")]), "usage": reported}
    )
    service.script(frames_reply(terminal))
    assert (await hear_once(service, provider)).completed.usage == kept


async def test_an_answer_that_used_all_it_was_allowed_is_incomplete(
    service: Simulator, provider: ResponsesProvider
) -> None:
    """llama.cpp calls a cut answer completed; the count tells."""
    service.script(wire.answer("4"), wire.answer("4"))
    request = replace(ASK, max_output_tokens=5)
    assert (await hear_once(service, provider, request)).completed.incomplete
    request = replace(ASK, max_output_tokens=6)
    assert not (await hear_once(service, provider, request)).completed.incomplete


async def test_a_large_answer_arrives_whole(
    service: Simulator, provider: ResponsesProvider
) -> None:
    words = [f"word {number} " for number in range(5_000)]
    service.script(wire.answer(*words))
    heard = await hear_once(service, provider)
    assert heard.text == heard.completed.text == "".join(words)
    assert heard.completed.anomalies == 0
