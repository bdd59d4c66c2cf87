"""A connection lost during COMMIT: what happened is read back, and nothing happens twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from django.db import connection, connections

from recovery.executor import THREADS, in_thread
from tests.factories import ConversationFactory, WebhookAddressFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, tool_calls
from tests.support.pgproxy import PATIENT, Proxy, When, proxy
from tests.support.serving import provider_steps, serving, tool_steps
from tests.support.turns import require_terminal, text_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# in the order in which one turn with one tool commits them
TRANSITIONS = [
    "claim",
    "receipt and first provider step",
    "provider step completed, call requested",
    "tool started",
    "tool's outcome",
    "second provider step",
    "end",
]


@pytest.fixture
def lossy(transactional_db: None) -> Iterator[Proxy]:
    """Put a proxy between this process and its database."""
    settings = connections["default"].settings_dict
    before = dict(settings)
    options = f"{settings['OPTIONS'].get('options', '')} {PATIENT}"
    with proxy(settings["HOST"], int(settings["PORT"])) as between:
        settings.update(
            HOST="127.0.0.1",
            PORT=str(between.port),
            OPTIONS={**settings["OPTIONS"], "options": options},
        )
        try:
            yield between
        finally:
            settings.update(before)
            connection.close()


async def reopen_connections() -> None:
    """Close the session of every executor thread, so that it connects anew."""
    barrier = threading.Barrier(THREADS)

    def close() -> None:
        barrier.wait(60)
        connection.close()

    await asyncio.gather(*(in_thread(close) for _ in range(THREADS)))


def let_arrive_once_asked_again(lossy: Proxy) -> None:
    """Pass a late commit on when the second attempt waits for the locks of the first."""

    def waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity "
                "WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return bool(cursor.fetchone()[0])

    try:
        assert lossy.lost.wait(60)
        wait_until(waiting, "the second attempt waits")
    finally:
        lossy.let_arrive()
        connection.close()


@pytest.mark.parametrize("when", ["before", "after", "late"])
@pytest.mark.parametrize("transition", TRANSITIONS)
async def test_a_commit_of_unknown_outcome_is_settled_and_no_effect_is_repeated(
    lossy: Proxy, model: Simulator, sink: Simulator, transition: str, when: When
) -> None:
    await reopen_connections()
    url = f"{sink.url}/hook"
    conversation = await in_thread(ConversationFactory.create)
    await in_thread(WebhookAddressFactory.create, owner_id=conversation.owner_id, url=url)
    arguments = json.dumps({"url": url, "body": "{}"})
    model.script(
        tool_calls(("call_1", "webhook_post", arguments), text="Sending. "),
        answer("Sent.", response_id="resp_2"),
    )
    try:
        async with serving(model.base_url) as runtime:
            turn = await runtime.ask("Send it.", conversation)
            lossy.arm(TRANSITIONS.index(transition) + 1, when)
            if when == "late":
                arrival = asyncio.to_thread(let_arrive_once_asked_again, lossy)
                turn, _ = await asyncio.gather(runtime.serve(turn), arrival)
            else:
                turn = await runtime.serve(turn)
        assert lossy.lost.is_set()
        assert (turn.state, turn.generation, turn.attempts) == ("completed", 1, 1)
        await in_thread(require_terminal, turn)
        assert await in_thread(text_of, turn) == "Sending. Sent."
        assert [step.state for step in await tool_steps(turn)] == ["succeeded"]
        assert [step.state for step in await provider_steps(turn)] == ["completed"] * 2
        assert model.posts == 2
        assert list(sink.posts_per_key().values()) == [1]
    finally:
        await reopen_connections()
