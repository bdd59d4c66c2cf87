"""The live view shows everything in the end, whatever was lost on the way."""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer
from pytest_django.fixtures import Settings

from recovery.executor import in_thread
from tests.support.live import REPAIRED_SECONDS, LiveClient, Shown
from tests.turns.consumers.commits import write
from turns import credentials, events, live
from turns.models import Turn

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_lost_hint_is_repaired_by_the_slow_poll(
    turn: Turn, token: dict[str, str]
) -> None:
    """failure H48"""
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    began = time.monotonic()
    await write(turn, "unannounced", announced=False)
    await client.until("text", text="unannounced")
    assert time.monotonic() - began < REPAIRED_SECONDS
    await client.leave()


class DeadLayer:
    """A channel layer whose service is away."""

    async def new_channel(self) -> str:
        raise ConnectionError

    async def group_send(self, *_: Any) -> None:
        raise ConnectionError


async def test_a_dead_channel_layer_delays_the_view_by_the_slow_poll(
    turn: Turn, token: dict[str, str], settings: Settings
) -> None:
    await live.stop()
    await get_channel_layer().close()
    events.stop()
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": f"{__name__}.DeadLayer"}}
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    began = time.monotonic()
    await write(turn, "still")
    await client.until("text", text="still")
    assert time.monotonic() - began < REPAIRED_SECONDS
    await live.stop()
    await client.leave()


async def test_a_killed_reader_connection_is_opened_again(
    turn: Turn, token: dict[str, str], database_url: str
) -> None:
    """failure H51"""
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as admin:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name IN ('holdfast live', 'holdfast-hints') "
            "AND datname = current_database()"
        )
        await admin.execute(
            "INSERT INTO turns_textchunk (turn_id, seq, generation, text) "
            "VALUES (%s, 1, 1, 'after the loss')",
            [turn.pk],
        )
    await client.until("text", text="after the loss")
    await client.leave()


async def test_a_client_that_does_not_read_is_shown_a_snapshot_when_it_does(
    turn: Turn, token: dict[str, str], reader: live.Reader
) -> None:
    """failure H47"""
    credential = await in_thread(credentials.of_bearer, token["authorization"])
    assert credential is not None
    view = live.View(turn.conversation_id, credential, None)
    reader.join(view)
    await view.ready.wait()
    count = 0
    while view.cursor is not None:
        view.ready.clear()
        count += 1
        await write(turn, f"{count:16}" * 1_000)
        await view.ready.wait()
    assert [json.loads(text)["type"] for text in view.outbox] == ["resync"]

    view.take()
    reader.want(view)
    shown = Shown()
    whole = "".join(f"{number:16}" * 1_000 for number in range(1, count + 1))
    while not shown.messages or shown.answer_to(str(turn.pk))["text"] != whole:
        await view.ready.wait()
        view.ready.clear()
        while (text := view.take()) is not None:
            shown.apply(json.loads(text))
    reader.leave(view)
