"""The live view keeps its bounds: of frames both ways, snapshots and connections."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from recovery.executor import in_thread
from tests.factories import ConversationFactory, MessageFactory
from tests.support.live import LiveClient
from tests.turns.consumers.commits import bearer, finish, write
from turns import bounds
from turns.models import Turn
from turns.projection import Cursor

pytestmark = pytest.mark.django_db(transaction=True)


async def test_no_frame_is_larger_than_its_bound_whatever_the_text(
    turn: Turn, token: dict[str, str]
) -> None:
    """LiveClient checks each frame's size; control characters are six bytes each in JSON."""
    texts = ["\x01" * bounds.CHUNK_MAX_BYTES, '"quoted" \\n' * 1_000, "ü" * 8_000, "𝄞" * 2_000]
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    await write(turn, *texts)
    whole = "".join(texts)
    while client.shown.answer_to(str(turn.pk))["text"] != whole:
        assert (await client.next())["type"] == "text"
    stages = [Cursor.parse(f["cursor"]) for f in client.shown.frames]
    assert any(stage is not None and stage.offset for stage in stages)
    await finish(turn)
    # too large for one frame: the client asks for it by id
    assert (await client.until("message", state="complete"))["text"] is None
    await client.leave()

    # a snapshot of the same, while it still streams and after
    again = await LiveClient(turn.conversation_id, token).connect()
    await again.next()
    assert again.shown.answer_to(str(turn.pk))["text"] is None
    await again.leave()


async def test_long_live_text_follows_the_snapshot_as_text(
    turn: Turn, token: dict[str, str]
) -> None:
    texts = ["x" * bounds.CHUNK_MAX_BYTES] * 3
    await write(turn, *texts)
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.until("text", seq=3)
    assert client.shown.answer_to(str(turn.pk))["text"] == "".join(texts)
    await client.leave()


async def test_a_snapshot_holds_the_newest_messages_and_says_where_older_ones_begin() -> None:
    conversation = await in_thread(ConversationFactory)

    def fill() -> list[int]:
        return [
            MessageFactory(conversation=conversation, answered=True, text="y" * 9_000).pk
            for _ in range(12)
        ]

    ids = await in_thread(fill)
    token = await in_thread(bearer, conversation.owner_id)
    client = await LiveClient(conversation.pk, token).connect()
    snapshot = await client.next()
    shown = [int(m["id"]) for m in snapshot["messages"]]
    assert shown == ids[: -len(shown) - 1 : -1]
    assert 0 < len(shown) < 12
    assert snapshot["next"] == str(shown[-1])
    await client.leave()


async def test_an_incoming_frame_over_its_bound_closes_the_view(
    turn: Turn, token: dict[str, str]
) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    await client.send("x" * (bounds.FRAME_IN_MAX_BYTES + 1))
    assert await client.closed() == 4413


async def test_other_incoming_frames_change_nothing(turn: Turn, token: dict[str, str]) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    snapshot = await client.next()
    for text in (
        "",
        "{",
        "[]",
        '{"type": "text"}',
        "[" * 10_000,
        "x" * bounds.FRAME_IN_MAX_BYTES,
    ):
        await client.send(text)
    await client.send('{"type": "ping"}')
    assert (await client.next()) == {"type": "pong", "cursor": snapshot["cursor"]}
    await client.leave()


async def test_three_hundred_open_views_hold_no_connection_each(
    turn: Turn, token: dict[str, str], database_url: str
) -> None:
    """failures H75, H76"""
    clients = [LiveClient(turn.conversation_id, token) for _ in range(300)]
    await asyncio.gather(*(client.connect() for client in clients))
    await asyncio.gather(*(client.next() for client in clients))
    await write(turn, "to everybody")
    await asyncio.gather(*(client.until("text") for client in clients))
    async with await psycopg.AsyncConnection.connect(database_url) as admin:
        count = await admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name LIKE 'holdfast%'"
        )
        # eight database threads, the reader, two of the channel layer, this test's own
        assert (await count.fetchone() or (99,))[0] <= 8 + 1 + 3 + 1
    await asyncio.gather(*(client.leave() for client in clients))
