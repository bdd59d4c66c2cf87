"""One turn under its server: however the model's service ends, the rows say exactly that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.db.models.functions import Now

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import TurnFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, close, error_reply, hold, json_reply, send
from tests.simulators.responses_wire import (
    Stream,
    answer,
    frames_reply,
    response,
    stalled,
)
from tests.support.serving import Serving, provider_steps, receipt_of, serving
from tests.support.turns import claim_anew, everything, require_terminal, text_of
from tests.support.waiting import wait_until
from turns import bounds
from turns.limits import Limits
from turns.models import Message, Turn
from turns.transitions import interrupt_own_turns, request_cancel

pytestmark = pytest.mark.django_db(transaction=True)


async def ended(turn: Turn) -> tuple[str, str]:
    """Return state and code of a turn whose every row has ended."""
    await in_thread(require_terminal, turn)
    return turn.state, turn.error_code


async def owner_of(turn: Turn) -> int:
    return await in_thread(lambda: turn.conversation.owner_id)


async def test_an_answer_is_stored_as_it_was_streamed(model: Simulator) -> None:
    """behaviour AD5"""
    model.script(answer("Once ", "upon ", "a ", "time 😀."))
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("Tell me."))
    assert await ended(turn) == ("completed", "")
    assert await in_thread(text_of, turn) == "Once upon a time 😀."
    receipt = await receipt_of(turn)
    assert (receipt.state, receipt.model, receipt.message_count) == ("completed", "scripted", 1)
    (step,) = await provider_steps(turn)
    assert (step.state, step.response_id) == ("completed", "resp_1")
    assert step.usage == receipt.usage
    assert model.posts == 1
    assert runtime.announced != []


def cut(*steps: Any) -> Reply:
    """Two deltas and then something else than the end."""
    stream = Stream()
    frames = [*stream.opening(), *stream.message("Once ", "upon")][:6]
    return frames_reply(send(*frames), *steps)


ERROR_IN_STREAM = Stream().event("error", code="server_error", message="You said: secret")
INCOMPLETE = Stream().terminal("incomplete", incomplete_details={"reason": "max_tokens"})
BODY = {"error": {"message": "secret"}}
ONCE = "Once upon"
UNSEEN = "\u200b \ufeff\u200d"
# how the service ends: its reply, and the state, code and text the turn must have
ENDINGS: dict[str, tuple[Reply, str, str, str]] = {
    "connection closed": (cut(close()), "failed", "truncated_stream", ONCE),
    "no terminal event": (cut(), "failed", "truncated_stream", ONCE),
    "cut in a frame": (cut(send(b"event: "), close()), "failed", "truncated_stream", ONCE),
    "error after 200": (cut(send(ERROR_IN_STREAM)), "failed", "provider_unavailable", ONCE),
    "incomplete": (cut(send(INCOMPLETE)), "failed", "response_incomplete", ONCE),
    "cancelled": (cut(send(Stream().terminal("cancelled"))), "cancelled", "cancelled", ONCE),
    "500 without a body": (error_reply(500), "failed", "provider_unavailable", ""),
    "500 with a body": (json_reply(BODY, status=500), "failed", "provider_unavailable", ""),
    "401": (error_reply(401, code="invalid_api_key"), "failed", "provider_auth", ""),
    "429": (error_reply(429), "failed", "provider_rate_limited", ""),
    "nothing": (answer(), "failed", "empty_output", ""),
    "blank": (answer("  \n"), "failed", "empty_output", "  \n"),
    "invisible": (answer(UNSEEN), "failed", "empty_output", UNSEEN),
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_answer_that_does_not_end_well_is_never_a_completion(
    model: Simulator, ending: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """behaviour B2; failures H31, H32, H33"""
    reply, state, code, text = ENDINGS[ending]
    model.script(reply)
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask("my secret question"))
    assert await ended(turn) == (state, code)
    assert await in_thread(text_of, turn) == text
    message = await in_thread(lambda: Message.objects.get(pk=turn.assistant_message_id))
    assert message.state == state
    receipt = await receipt_of(turn)
    (step,) = await provider_steps(turn)
    assert (receipt.state, receipt.error_code) == (state, code)
    assert (step.state, step.error_code) == (state, code)
    assert model.posts == 1
    logged = "".join(capfd.readouterr())
    assert "secret" not in logged
    assert "secret" not in str(await in_thread(lambda: everything()["Turn"]))


async def test_usage_reported_before_the_end_broke_off_is_kept(model: Simulator) -> None:
    """behaviour B1"""
    stream = Stream()
    frames = stream.opening()
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    frames += stream.message("Once")[:3]
    snapshot = response(status="in_progress", usage=usage)
    frames.append(stream.event("response.in_progress", response=snapshot))
    model.script(frames_reply(send(*frames)))
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("failed", "truncated_stream")
    (step,) = await provider_steps(turn)
    receipt = await receipt_of(turn)
    assert step.response_id == "resp_1"
    assert step.usage == receipt.usage == usage


async def test_a_service_that_falls_silent_is_asked_once(model: Simulator) -> None:
    """failure H17"""
    model.script(Reply(hold_head="silence"))
    async with serving(model.base_url, idle_seconds=0.3) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("failed", "provider_timeout")
    assert model.posts == 1


async def test_a_service_that_cannot_be_reached_fails_the_turn(model: Simulator) -> None:
    async with serving("http://127.0.0.1:9/v1") as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("failed", "provider_unreachable")


async def test_text_past_its_bound_ends_the_turn_with_what_fits(model: Simulator) -> None:
    """behaviour A7"""
    model.script(answer("a" * 65_535, "€€", "never seen"))
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("failed", "assistant_message_limit_reached")
    assert await in_thread(text_of, turn) == "a" * 65_535


async def test_text_exactly_at_its_bound_is_an_answer(model: Simulator) -> None:
    """behaviour A7"""
    model.script(answer("a" * 60_000, "b" * 5_536))
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("completed", "")
    assert len(await in_thread(text_of, turn)) == bounds.ASSISTANT_TEXT_MAX_BYTES


async def with_wall_clock(runtime: Serving, seconds: float) -> Turn:
    """Return a queued turn with a wall clock of its own, as admission would fix it."""

    def admit() -> Turn:
        limits = {**Limits().snapshot(), "wall_clock_seconds": seconds}
        return TurnFactory.create(limits=limits)

    return await in_thread(admit)


async def test_a_turn_past_its_deadline_fails_with_the_text_it_has(model: Simulator) -> None:
    model.script(stalled("Once upon"))
    async with serving(model.base_url) as runtime:
        turn = await runtime.serve(await with_wall_clock(runtime, 0.5))
    assert await ended(turn) == ("failed", "deadline_passed")
    assert await in_thread(text_of, turn) == "Once upon"
    await asyncio.to_thread(model.wait_for_disconnects)


async def test_a_cancel_closes_the_request_and_keeps_what_arrived(model: Simulator) -> None:
    model.script(stalled("Once upon"))
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()
        server = runtime.server(turn.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "answer")
        await in_thread(request_cancel, await owner_of(turn), turn.pk)
        server.cancel()
        await task
        await in_thread(turn.refresh_from_db)
        assert await ended(turn) == ("cancelled", "cancelled")
        assert await in_thread(text_of, turn) == "Once upon"
        await asyncio.to_thread(model.wait_for_disconnects)


async def test_a_cancel_that_was_not_noticed_still_decides_the_end(model: Simulator) -> None:
    model.script(stalled("Once upon"))
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()
        task = asyncio.create_task(runtime.server(turn.pk).run())
        await asyncio.to_thread(model.wait_for_gate, "answer")
        await in_thread(request_cancel, await owner_of(turn), turn.pk)
        model.release("answer")
        await task
        await in_thread(turn.refresh_from_db)
    assert await ended(turn) == ("cancelled", "cancelled")


async def test_a_cancelled_turn_in_the_queue_is_never_claimed(model: Simulator) -> None:
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()
        await in_thread(request_cancel, await owner_of(turn), turn.pk)
        turn = await runtime.serve(turn)
    assert (turn.state, turn.generation) == ("cancelled", 0)
    assert model.posts == 0


async def test_the_same_hint_three_times_is_one_run(model: Simulator) -> None:
    """failures H14, H15"""
    model.script(answer("Once."))
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()
        await asyncio.gather(*(runtime.server(turn.pk).run() for _ in range(3)))
        turn = await runtime.serve(turn)
    assert await ended(turn) == ("completed", "")
    assert (turn.generation, turn.attempts, model.posts) == (1, 1, 1)


async def test_a_dead_runtime_claims_nothing(model: Simulator) -> None:
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()

        def bury() -> None:
            runtime.runtime.stopped_at = Now()
            runtime.runtime.stop_reason = "runtime_lost"
            runtime.runtime.save(update_fields=["stopped_at", "stop_reason"])

        await in_thread(bury)
        turn = await runtime.serve(turn)
    assert (turn.state, turn.generation, model.posts) == ("queued", 0, 0)


@pytest.mark.parametrize("overtaken", ["interrupted", "claimed anew"])
async def test_a_stale_owner_that_goes_on_streaming_writes_nothing(
    model: Simulator, overtaken: str
) -> None:
    model.script(
        frames_reply(
            send(*Stream().opening(), *Stream().message("Once ")[:3]),
            hold("overtaken"),
            send(*Stream().message("upon a time.")[2:], Stream().terminal()),
        )
    )
    async with serving(model.base_url) as runtime:
        turn = await runtime.ask()
        server = runtime.server(turn.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "overtaken")

        def overtake() -> dict[str, Any]:
            if overtaken == "interrupted":
                assert server.fence is not None
                interrupt_own_turns([server.fence], ErrorCode.RUNTIME_LOST)
            else:
                claim_anew(turn.pk)
            return everything()

        await asyncio.to_thread(
            wait_until,
            lambda: server.fence and runtime.text.written(server.fence),
            "the first text is committed",
        )
        before = await in_thread(overtake)
        model.release("overtaken")
        assert await task is None
        assert await in_thread(everything) == before
    if overtaken == "interrupted":
        await in_thread(require_terminal, turn)
        assert await in_thread(text_of, turn) == "Once "


async def test_an_ended_turn_stays_as_it_is_while_the_next_one_answers(
    model: Simulator,
) -> None:
    """failure H24: late chunks of the first turn touch neither"""
    model.script(stalled("first", match="one"), answer("second", match="two"))
    async with serving(model.base_url) as runtime:
        first = await runtime.ask("one")
        conversation = await in_thread(lambda: first.conversation)
        server = runtime.server(first.pk)
        task = asyncio.create_task(server.run())
        await asyncio.to_thread(model.wait_for_gate, "answer")
        await in_thread(request_cancel, await owner_of(first), first.pk)
        server.cancel()
        await task
        second = await runtime.serve(await runtime.ask("two", conversation))
        await in_thread(first.refresh_from_db)
        model.release("answer")
    assert (first.state, await in_thread(text_of, first)) == ("cancelled", "first")
    assert (second.state, await in_thread(text_of, second)) == ("completed", "second")


async def test_an_error_of_our_own_ends_the_turn_as_internal(model: Simulator) -> None:
    """behaviour A5: whatever is raised, the code is one of ours and never unknown"""

    class Broken:
        api = "responses"

        def respond(self, _: object) -> Any:
            raise RuntimeError("a bug")

        async def aclose(self) -> None:
            pass

    async with serving(model.base_url) as runtime:
        runtime.provider = Broken()
        turn = await runtime.serve(await runtime.ask())
    assert await ended(turn) == ("failed", "internal_error")
