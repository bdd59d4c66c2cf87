"""What a provider names has a bound: at the edge, and again where it is stored.

Ids are 512 bytes, names of tools 128. Longer ones end the work with a code, and nothing of the
response is stored.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from recovery.errors import BoundExceeded
from recovery.executor import in_thread
from tests import factories as make
from tests.simulators import chat_wire, responses_wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.support.job_serving import ended, serving_jobs, steps_of
from tests.support.jobs import every_job_row
from tests.support.serving import serving, tool_steps
from tests.support.settled import every_row
from tests.support.turns import require_terminal
from turns import bounds
from turns import transitions as of_turns
from turns.providers.adapter import HttpTextProvider
from turns.providers.chat import ChatProvider
from turns.providers.responses import ResponsesProvider
from work import transitions as of_jobs

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT: Final = bounds.PROVIDER_ID_MAX_BYTES
TOO_LONG: Final = {
    "a byte": "x" * (LIMIT + 1),
    "in few characters": "\U0001f600" * (LIMIT // 4 + 1),
    "a megabyte": "x" * 2**20,
    # the index compresses what it can
    "a megabyte of noise": random.Random(1).randbytes(2**19).hex(),
}
CALL: Final[dict[str, Any]] = {
    "call_id": "call",
    "item_id": "item",
    "name": "count",
    "arguments": "{}",
}


@pytest.fixture(params=["turn", "job"])
def complete(request: pytest.FixtureRequest) -> Callable[..., object]:
    """Return what completes the open request of a turn or a job."""
    if request.param == "turn":
        turn = make.TurnFactory.create(running=True, asked=True)
        fence, step = make.fence_of(turn), turn.provider_steps.get()
        return lambda **response: of_turns.complete_provider_step(
            fence, step.pk, last_seq=None, **response
        )
    asked = make.WorkProviderStepFactory.create()
    return lambda **response: of_jobs.complete_provider_step(
        make.fence_of(asked.job), asked.pk, text="", **response
    )


def answered(field: str, value: str) -> dict[str, Any]:
    """Return a response that asks for a call, with one of its names replaced."""
    response: dict[str, Any] = {"response_id": "resp", "usage": None}
    if field == "response_id":
        return {**response, "response_id": value, "calls": ()}
    return {**response, "calls": [of_turns.RequestedCall(**{**CALL, field: value})]}


@pytest.mark.parametrize("excess", TOO_LONG)
@pytest.mark.parametrize("field", ["call_id", "item_id", "response_id"])
def test_an_id_past_its_bound_is_not_stored(
    complete: Callable[..., object], field: str, excess: str
) -> None:
    before = every_row(), every_job_row()

    with pytest.raises(BoundExceeded) as refused:
        complete(**answered(field, TOO_LONG[excess]))

    assert refused.value.code == "provider_protocol"
    assert (every_row(), every_job_row()) == before


@pytest.mark.parametrize("field", ["call_id", "item_id", "response_id"])
def test_an_id_at_its_bound_is_stored(complete: Callable[..., object], field: str) -> None:
    complete(**answered(field, "x" * LIMIT))


def test_usage_past_its_bound_is_not_stored(complete: Callable[..., object]) -> None:
    usage = {f"tokens_{n}": n for n in range(2_000)}

    with pytest.raises(BoundExceeded) as refused:
        complete(response_id="resp", usage=usage, calls=())

    assert refused.value.code == "provider_protocol"


def over_chat(**names: str) -> Reply:
    """Return a response that asks for a call under these names."""
    named = {"response_id": "resp", **CALL, **names}
    call = chat_wire.fragment(
        call_id=named["call_id"], name=named["name"], arguments=named["arguments"]
    )
    opening = chat_wire.chunk({"role": "assistant"}, response_id=named["response_id"])
    # later chunks may leave their id out
    call = call.replace(b'"id": "chatcmpl-1"', b'"id": null')
    finish = chat_wire.chunk(finish_reason="tool_calls", response_id=None)
    return chat_wire.frames_reply(opening, call, finish, chat_wire.DONE)


def over_responses(**names: str) -> Reply:
    """Return a response that asks for a call under these names."""
    named = {"response_id": "resp", **CALL, **names}
    return responses_wire.tool_calls(
        (named["call_id"], named["name"], named["arguments"]), response_id=named["response_id"]
    )


def over_responses_by_pieces(**names: str) -> Reply:
    """Return a response whose call has an item id beside the pieces of its arguments alone."""
    named = {**CALL, **names}
    item = responses_wire.call(named["name"], named["arguments"], call_id=named["call_id"])
    return responses_wire.frames_reply(
        responses_wire.event(
            "response.function_call_arguments.delta",
            output_index=0,
            item_id=named["item_id"],
            delta=named["arguments"],
        ),
        responses_wire.event(
            "response.output_item.done", output_index=0, item={**item, "id": None}
        ),
        responses_wire.event("response.completed", response=responses_wire.response()),
    )


ANSWERS: Final[list[tuple[type[HttpTextProvider], Callable[..., Reply], str]]] = [
    *((ChatProvider, over_chat, field) for field in ("response_id", "call_id", "name")),
    *(
        (ResponsesProvider, over_responses, field)
        for field in ("response_id", "call_id", "name")
    ),
    (ResponsesProvider, over_responses_by_pieces, "item_id"),
]


@pytest.mark.parametrize("excess", ["a byte", "in few characters", "100 KB"])
@pytest.mark.parametrize(
    ("adapter", "answer", "field"),
    [pytest.param(*case, id=f"{case[0].protocol} {case[2]}") for case in ANSWERS],
)
async def test_a_response_that_names_too_much_ends_its_work_with_a_code(
    model: Simulator,
    adapter: type[HttpTextProvider],
    answer: Callable[..., Reply],
    field: str,
    excess: str,
) -> None:
    value = {**TOO_LONG, "100 KB": "x" * 100_000}[excess]
    model.script(answer(**{field: value}), answer(**{field: value}))

    async with serving(model.base_url, adapter=adapter) as runtime:
        turn = await runtime.serve(await runtime.ask())
    async with serving_jobs(model.base_url, adapter=adapter) as workers:
        job = await workers.serve(await workers.ask())

    assert model.posts == 2
    assert (turn.state, turn.error_code) == ("failed", "provider_protocol")
    await in_thread(require_terminal, turn)
    assert await ended(job) == ("failed", "provider_protocol")
    assert [*await tool_steps(turn), *await steps_of(job)] == []
