"""The loop of a worker process: room, repeated hints, cancels, draining, fencing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recovery.errors import ErrorCode
from recovery.fences import Fence
from tests.factories import ConversationFactory, RuntimeFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.runtimes import Owner, looks_of
from tests.support.turns import ask, everything, require_terminal, text_of, wait_until_ended
from tests.support.waiting import wait_until
from turns.host import TurnHost
from turns.models import Turn
from turns.providers.responses import ResponsesProvider
from turns.requests import Requests
from turns.tools import registry
from turns.transitions import delete_conversation, interrupt_own_turns, request_cancel

pytestmark = pytest.mark.django_db(transaction=True)

StartHost = Callable[..., TurnHost]


@pytest.fixture
def owner(transactional_db: None) -> Owner:
    return Owner()


@pytest.fixture
def start_host(owner: Owner, model: Simulator) -> Iterator[StartHost]:
    """Start hosts; each has ended afterwards."""
    started: list[TurnHost] = []

    def start(**options: Any) -> TurnHost:
        parts: dict[str, Any] = {
            "owner": owner,
            "beat": owner.beat,
            "provider": lambda: ResponsesProvider(base_url=model.base_url),
            "tools": registry,
            "requests": Requests("", 96 * 1024, None, registry.schemas()),
        }
        host = TurnHost(**(parts | options))
        host.start()
        started.append(host)
        return host

    yield start
    for host in started:
        host.drain(time.monotonic())


def asked() -> Turn:
    """Return a queued turn in a conversation of its own."""
    return ask(ConversationFactory.create())


def owner_of(turn: Turn) -> int:
    return turn.conversation.owner_id


def running(count: int) -> Callable[[], bool]:
    return lambda: Turn.objects.filter(state="running").count() == count


def test_hints_from_any_thread_are_served_and_repeated_ones_change_nothing(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    turns = [asked() for _ in range(5)]
    threads = [
        threading.Thread(target=host.submit, args=[turn.pk]) for turn in turns for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for turn in turns:
        assert wait_until_ended(turn).state == "completed"
        assert turn.attempts == 1
    assert model.posts == 5


def test_turns_wait_unclaimed_while_there_is_no_room(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host(capacity=2)
    turns = [asked() for _ in range(4)]
    model.script(*(stalled("Once", gate=f"g{n}") for n in range(2)))
    for turn in turns:
        host.submit(turn.pk)
    model.wait_for_posts(2)
    assert Turn.objects.filter(state="queued", generation=0).count() == 2
    model.release("g0")
    model.release("g1")
    for turn in turns:
        assert wait_until_ended(turn).state == "completed"
    assert model.posts == 4


def test_a_cancel_is_noticed_without_anybody_telling_the_worker(
    start_host: StartHost, model: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first look that begins after it, long before the service is given up."""
    host = start_host()
    turn = asked()
    model.script(stalled("Once upon"))
    host.submit(turn.pk)
    model.wait_for_gate("answer")
    looks = looks_of(host, monkeypatch)
    request_cancel(owner_of(turn), turn.pk)
    may_have_missed_it = len(looks) + 1
    wait_until_ended(turn)
    assert any(looks[: may_have_missed_it + 1])
    assert (turn.state, text_of(turn)) == ("cancelled", "Once upon")
    model.wait_for_disconnects()


def test_a_turn_ended_by_somebody_else_is_let_go(
    start_host: StartHost, model: Simulator
) -> None:
    """failure H04: its server is let go and writes nothing"""
    host = start_host()
    turn = asked()
    model.script(stalled("Once upon"))
    host.submit(turn.pk)
    model.wait_for_gate("answer")
    turn.refresh_from_db()
    assert turn.claim_token is not None
    interrupt_own_turns([Fence(turn.pk, 1, turn.claim_token)], ErrorCode.DEADLINE_PASSED)
    before = everything()
    # its request is closed although the service never speaks again
    model.wait_for_disconnects()
    assert everything() == before


def test_a_turn_whose_conversation_is_removed_is_let_go(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    turn = asked()
    model.script(stalled("Once upon"))
    host.submit(turn.pk)
    model.wait_for_gate("answer")
    delete_conversation(turn.conversation.owner_id, turn.conversation_id)
    # its request is closed although the service never speaks again
    model.wait_for_disconnects()
    wait_until(lambda: turn.pk not in host.known(), "it is let go")
    assert not Turn.objects.exists()


def test_draining_lets_short_turns_finish_and_interrupts_the_others(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    short, long, late = asked(), asked(), asked()
    model.script(
        stalled("short", gate="soon", match="What"), stalled("long", gate="never", match="What")
    )
    host.submit(short.pk)
    model.wait_for_gate("soon")
    host.submit(long.pk)
    model.wait_for_gate("never")
    host.stop_claiming()
    host.submit(late.pk)
    model.release("soon")
    wait_until_ended(short)
    host.drain(time.monotonic() + 0.2)
    for turn in (short, long, late):
        turn.refresh_from_db()
    assert (short.state, short.error_code, text_of(short)) == ("completed", "", "short")
    require_terminal(long)
    assert (long.state, long.error_code) == ("interrupted", "runtime_stopped")
    assert text_of(long) == "long"
    assert (late.state, late.generation) == ("queued", 0)
    assert model.posts == 2


def test_a_turn_that_was_cancelled_and_drained_is_cancelled(
    start_host: StartHost, model: Simulator
) -> None:
    host = start_host()
    turn = asked()
    model.script(stalled("Once"))
    host.submit(turn.pk)
    model.wait_for_gate("answer")
    request_cancel(owner_of(turn), turn.pk)
    host.drain(time.monotonic())
    turn.refresh_from_db()
    assert (turn.state, turn.error_code) == ("cancelled", "cancelled")


def test_a_fenced_runtime_lets_go_of_everything_and_writes_nothing(
    start_host: StartHost, owner: Owner, model: Simulator
) -> None:
    host = start_host()
    turns = [asked() for _ in range(3)]
    model.script(*(stalled("Once", gate=f"g{n}") for n in range(3)))
    for turn in turns:
        host.submit(turn.pk)
    for n in range(3):
        model.wait_for_gate(f"g{n}")
    wait_until(lambda: all(text_of(turn) == "Once" for turn in turns), "the text is committed")
    before = everything()
    assert owner.runtime is not None
    buried, owner.runtime = owner.runtime.pk, None
    host.cancel_all(buried)
    model.wait_for_disconnects(3)
    assert everything() == before
    # while it has no id it claims nothing
    waiting = asked()
    host.submit(waiting.pk)
    # under a new id it serves again
    owner.runtime = RuntimeFactory.create()
    model.script(answer("Again."))
    following = asked()
    host.submit(following.pk)
    assert wait_until_ended(following).owner == owner.runtime.pk
    waiting.refresh_from_db()
    assert waiting.generation == 0
    assert {turn.state for turn in Turn.objects.filter(pk__in=[t.pk for t in turns])} == {
        "running"
    }


def test_the_loop_says_that_it_turns(start_host: StartHost, owner: Owner) -> None:
    start_host()
    wait_until(lambda: owner.beats >= 2, "two beats")


def test_a_host_without_a_provider_does_not_start(owner: Owner) -> None:
    def broken() -> Any:
        raise ValueError("no address")

    host = TurnHost(
        owner=owner,
        beat=owner.beat,
        provider=broken,
        tools=registry,
        requests=Requests("", 1_024, None, ()),
    )
    with pytest.raises(RuntimeError):
        host.start()


def test_a_host_whose_loop_breaks_says_so_and_serves_nothing_more(
    start_host: StartHost,
) -> None:
    broken, beats = threading.Event(), iter(range(2))

    def beat() -> None:
        next(beats)

    host = start_host(beat=beat, on_broken=broken.set)

    assert broken.wait(30)
    turn = asked()
    host.submit(turn.pk)
    turn.refresh_from_db()
    assert turn.state == Turn.State.QUEUED
