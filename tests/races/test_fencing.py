"""A runtime that was buried and registered anew lets go of the old claims, and of no other."""

from __future__ import annotations

import threading
import time

import pytest

from tests.factories import ConversationFactory, RuntimeFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer
from tests.support.scripted import *  # noqa: F403
from tests.support.turns import ask, wait_until_ended
from turns.host import TurnHost
from turns.providers.responses import ResponsesProvider
from turns.requests import Requests
from turns.tools import registry

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_turn_begun_under_the_next_runtime_survives_the_burial_of_the_last(
    model: Simulator,
) -> None:
    """The loop was late: it hears of the burial after it began a turn under the new id."""
    runtime = RuntimeFactory.create(lost=True)
    host = TurnHost(
        owner=lambda: runtime.pk,
        beat=lambda: None,
        provider=lambda: ResponsesProvider(base_url=model.base_url),
        tools=registry,
        requests=Requests("", 96 * 1024, None, registry.schemas()),
    )
    model.script(answer("Hello."))
    host.start()
    try:
        turn = ask(ConversationFactory.create())
        late = threading.Event()
        host._call(late.wait)
        host.submit(turn.pk)
        host.cancel_all(runtime.pk)
        runtime = RuntimeFactory.create()
        late.set()
        assert (wait_until_ended(turn).state, turn.owner) == ("completed", runtime.pk)
    finally:
        host.drain(time.monotonic())
