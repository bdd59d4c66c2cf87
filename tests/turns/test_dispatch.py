"""The hint that a turn waits: after the commit, never in the way, free to be lost."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from celery import current_app
from structlog.testing import capture_logs

from recovery.errors import Refused
from tests import factories as make
from turns import dispatch, transitions
from turns.models import Turn


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """What reaches the broker."""
    messages: list[tuple[str, list[int]]] = []

    def send_task(name: str, args: list[int], **_: Any) -> None:
        messages.append((name, args))

    monkeypatch.setattr(current_app, "send_task", send_task)
    return messages


@pytest.mark.django_db(transaction=True)
def test_a_hint_carries_the_id_alone_and_leaves_after_the_commit(
    sent: list[tuple[str, list[int]]],
) -> None:
    conversation = make.ConversationFactory.create()
    turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?").turn

    assert dispatch.flush(5)
    assert sent == [("turns.tasks.run_turn", [turn.pk])]


@pytest.mark.django_db(transaction=True)
def test_a_refused_or_repeated_request_sends_none(sent: list[tuple[str, list[int]]]) -> None:
    turn = make.TurnFactory.create(client_key="k")
    owner, conversation = turn.conversation.owner_id, turn.conversation_id

    with pytest.raises(Refused):
        transitions.admit_turn(owner, conversation, "And?")
    transitions.admit_turn(owner, conversation, turn.user_message.text, client_key="k")

    assert dispatch.flush(5)
    assert sent == []


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_down_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("connection refused")

    monkeypatch.setattr(current_app, "send_task", refuse)
    conversation = make.ConversationFactory.create()
    turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?").turn

    assert dispatch.flush(5)
    assert Turn.objects.get(pk=turn.pk).state == "queued"


def test_a_broker_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past what may wait, hints are dropped: the sweep sends others."""
    arrived: queue.Queue[int] = queue.Queue()
    release: queue.Queue[None] = queue.Queue()

    def hang(_: str, args: list[int], **__: Any) -> None:
        arrived.put(args[0])
        release.get()

    monkeypatch.setattr(current_app, "send_task", hang)
    dispatch.dispatch_turn(0)
    assert arrived.get(timeout=60) == 0
    for turn_id in range(1, dispatch.WAITING_HINTS_MAX + 10):
        dispatch.dispatch_turn(turn_id)

    assert not dispatch.flush(0)
    for _ in range(dispatch.WAITING_HINTS_MAX + 1):
        release.put(None)
    assert dispatch.flush(60)
    assert arrived.qsize() == dispatch.WAITING_HINTS_MAX


def test_thousands_of_dropped_hints_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releasing many jobs drops most of their hints; a line each took as long as all else."""
    release = threading.Event()
    monkeypatch.setattr(current_app, "send_task", lambda *_, **__: release.wait(60))
    dispatcher = dispatch.Dispatcher("turns", dispatch.TASK)
    with capture_logs() as lines:
        for turn_id in range(3 * dispatch.WAITING_HINTS_MAX):
            dispatcher.hint(turn_id)
    release.set()

    assert dispatcher.flush(60)
    assert [line["event"] for line in lines] == ["dispatch.dropped"]


@pytest.mark.django_db(transaction=True)
def test_a_machine_without_threads_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    conversation = make.ConversationFactory.create()
    with monkeypatch.context() as machine:
        machine.setattr(dispatch._turns, "_sender", None)
        machine.setattr(threading.Thread, "start", no_thread)
        turn = transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?").turn
    assert turn.state == Turn.State.QUEUED
