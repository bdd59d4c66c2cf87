"""A client that loses frames and reconnects anywhere ends up with exactly PostgreSQL's text."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from channels.layers import get_channel_layer
from django.db import transaction
from django.db.models import F

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import ConversationFactory, TextChunkFactory, TurnFactory, fence_of
from tests.support.live import LiveClient, Shown
from turns import events, live
from turns.models import Conversation, Message, Turn
from turns.tokens import create_token
from turns.transitions import admit_turn, finish_turn

pytestmark = pytest.mark.django_db(transaction=True)
TURNS = 5
ENDS: list[tuple[Turn.State, ErrorCode | None]] = [
    (Turn.State.COMPLETED, None),
    (Turn.State.INTERRUPTED, ErrorCode.RUNTIME_LOST),
    (Turn.State.FAILED, ErrorCode.RESPONSE_INCOMPLETE),
]


@pytest_asyncio.fixture(autouse=True)
async def reader() -> AsyncIterator[None]:
    live.start()
    yield
    await live.stop()
    await get_channel_layer().close()


async def away(*_: Any) -> None:
    """Send as through a channel layer whose service is away."""
    raise ConnectionError


@pytest.fixture
def conversation() -> Conversation:
    return ConversationFactory()


@pytest.fixture
def token(conversation: Conversation) -> dict[str, str]:
    return {"authorization": f"Bearer {create_token(conversation.owner_id)}"}


def a_turns_life(conversation: Conversation, chance: random.Random) -> None:
    """Commit a whole turn; its hints are sent or lost as chance has it."""
    with transaction.atomic():
        Conversation.objects.filter(pk=conversation.pk).update(
            revision=F("revision") + chance.randint(1, 3)
        )
        turn = TurnFactory(conversation=conversation, running=True, asked=True)
    for _ in range(chance.randint(0, 12)):
        text = "".join(chance.choice('aä \n𝄞"<&') for _ in range(chance.randint(1, 40)))
        TextChunkFactory(turn=turn, text=text)
        if chance.random() < 0.7:
            events.announce(conversation.pk)
    state, code = chance.choice(ENDS)
    finish_turn(fence_of(turn), state, error_code=code, last_seq=turn.chunks.count())


async def stored(conversation: Conversation) -> dict[str, str]:
    def read() -> dict[str, str]:
        rows = Message.objects.filter(conversation=conversation)
        return {str(pk): text for pk, text in rows.values_list("pk", "text")}

    return await in_thread(read)


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_shown_in_the_end_is_what_is_stored(
    conversation: Conversation,
    token: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    chance = random.Random(seed)
    stages = [Shown()]

    async def write() -> None:
        for number in range(TURNS):
            await in_thread(a_turns_life, conversation, random.Random(seed * 100 + number))
            if number == TURNS // 2:
                monkeypatch.setattr(get_channel_layer(), "group_send", away)

    async def look() -> None:
        """Apply some frames from some earlier stage on, and lose the rest."""
        stage = copy.deepcopy(chance.choice([stages[-1], chance.choice(stages)]))
        client = await LiveClient(
            conversation.pk, token, after=stage.cursor, shown=stage
        ).connect()
        for _ in range(chance.randint(1, 5)):
            if await client.socket.receive_nothing(0.2):
                break
            await client.next()
        stages.append(await client.leave())

    writing = asyncio.create_task(write())
    while not writing.done():
        await look()
    await writing

    # the last word: a live turn, so that every client has something to wait for
    await in_thread(admit_turn, conversation.owner_id, conversation.pk, "The last question")
    expected = await stored(conversation)
    for stage in chance.sample(stages, min(8, len(stages))):
        client = await LiveClient(
            conversation.pk, token, after=stage.cursor, shown=stage
        ).connect()
        while client.shown.texts != expected:
            await client.next()
        await client.leave()


async def test_a_reader_that_stumbles_over_a_hint_leaves_no_channel_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await live.stop()
    monkeypatch.setattr(live, "LAYER_RETRY_SECONDS", 0.0)
    layer, asked = get_channel_layer(), asyncio.Queue[str]()
    receive = layer.receive

    async def tell_and_receive(channel: str) -> dict[str, Any]:
        asked.put_nowait(channel)
        return await receive(channel)

    monkeypatch.setattr(layer, "receive", tell_and_receive)
    live.start()
    async with asyncio.timeout(60):
        await asked.get()
        for unreadable in (5, [[1]], None):
            await layer.group_send(events.GROUP, {"type": "hint", "c": unreadable})
            newest = await asked.get()

    assert layer._here().groups[events.GROUP] == {newest}
    assert set(layer._here().queues) == {newest}
