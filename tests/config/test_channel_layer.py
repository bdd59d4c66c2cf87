from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Final

import psycopg
import pytest
import pytest_asyncio
from channels.exceptions import ChannelFull
from django.db import connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_django.fixtures import Settings

from config.channel_layer import ENVELOPE_MAX_BYTES, HintTooLarge, NotifyChannelLayer
from tests.support.pgproxy import Proxy, proxy

pytestmark = pytest.mark.django_db(transaction=True)

SENDER = """
import asyncio, sys
import django
django.setup()
from config.channel_layer import NotifyChannelLayer

async def main(name, count):
    layer = NotifyChannelLayer()
    await asyncio.gather(
        *(layer.group_send("live", {"type": "hint", "c": [name, n]}) for n in range(count))
    )
    await layer.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@pytest_asyncio.fixture
async def layer() -> AsyncIterator[NotifyChannelLayer]:
    layer = NotifyChannelLayer(capacity=1_000)
    yield layer
    await layer.close()


@pytest_asyncio.fixture
async def other() -> AsyncIterator[NotifyChannelLayer]:
    layer = NotifyChannelLayer()
    yield layer
    await layer.close()


async def test_every_member_of_a_group_gets_each_message_once_from_two_processes(
    layer: NotifyChannelLayer, database_url: str
) -> None:
    channels = [await layer.new_channel() for _ in range(3)]
    for channel in channels:
        await layer.group_add("live", channel)
    senders = [
        subprocess.Popen(
            [sys.executable, "-c", SENDER, name, "50"],
            env={**os.environ, "DATABASE_URL": database_url},
        )
        for name in ("a", "b")
    ]
    async with asyncio.timeout(60):
        for channel in channels:
            got = [(await layer.receive(channel))["c"] for _ in range(100)]
            assert sorted(got) == sorted([name, n] for name in ("a", "b") for n in range(50))
            assert [n for name, n in got if name == "a"] == list(range(50))
        assert [await asyncio.to_thread(sender.wait) for sender in senders] == [0, 0]
        await layer.group_send("live", {"type": "hint", "c": ["end"]})
        for channel in channels:  # nothing was left between the last message and this one
            assert (await layer.receive(channel))["c"] == ["end"]


async def test_a_message_to_one_channel_reaches_it_from_another_layer(
    layer: NotifyChannelLayer, other: NotifyChannelLayer
) -> None:
    channel = await layer.new_channel()
    neighbour = await layer.new_channel()
    await other.send(channel, {"type": "hint", "n": 1})
    await layer.send(neighbour, {"type": "hint", "n": 2})
    async with asyncio.timeout(30):
        assert (await layer.receive(channel))["n"] == 1
        assert (await layer.receive(neighbour))["n"] == 2


async def test_reader_and_sender_reconnect_after_their_backends_were_terminated(
    layer: NotifyChannelLayer, other: NotifyChannelLayer
) -> None:
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    await other.group_send("live", {"type": "hint", "n": 0})
    assert (await layer.receive(channel))["n"] == 0

    terminated = await asyncio.to_thread(_terminate_hint_backends)
    assert terminated >= 2

    async with asyncio.timeout(30):
        number = 0
        while True:  # hints sent while the reader was away are lost, as hints may be
            number += 1
            await other.group_send("live", {"type": "hint", "n": number})
            with_timeout = asyncio.create_task(layer._here().queues[channel].get())
            done, _ = await asyncio.wait({with_timeout}, timeout=0.2)
            if done:
                break
            with_timeout.cancel()
    assert with_timeout.result()["n"] <= number


@pytest.fixture
def through(database_url: str, settings: Settings) -> Iterator[Proxy]:
    """What the layers connect through from now on."""
    described = conninfo_to_dict(database_url)
    with proxy(str(described["host"]), int(described["port"] or 5432)) as made:
        settings.DIRECT_DATABASE_URL = make_conninfo(
            database_url, host="127.0.0.1", port=made.port
        )
        yield made
        made.let_arrive()


async def test_what_got_through_before_its_connection_was_lost_is_not_received_twice(
    layer: NotifyChannelLayer, other: NotifyChannelLayer, through: Proxy
) -> None:
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    through.arm(1, "after", statement=b"pg_notify")
    await other.group_send("live", {"type": "hint", "n": 1})
    assert through.lost.is_set()
    await other.group_send("live", {"type": "hint", "n": 2})
    async with asyncio.timeout(30):
        assert [(await layer.receive(channel))["n"] for _ in range(2)] == [1, 2]


async def test_a_send_that_hangs_is_cut_at_once_and_who_waited_with_it_is_heard(
    layer: NotifyChannelLayer, other: NotifyChannelLayer, through: Proxy
) -> None:
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    over = threading.Event()

    def hang() -> None:
        over.wait(30)

    through.arm(2, "late", statement=b"pg_notify", hold=hang)
    # the first alone; the others, who come meanwhile, in one statement
    sends = [
        asyncio.create_task(other.group_send("live", {"type": "hint", "n": number}))
        for number in range(3)
    ]
    assert await asyncio.to_thread(through.lost.wait, 30)
    sends[1].cancel()
    async with asyncio.timeout(4):  # asking a hung server to cancel takes five seconds and more
        await asyncio.wait(sends)
    assert [send.cancelled() for send in sends] == [False, True, False]
    async with asyncio.timeout(20):
        assert [(await layer.receive(channel))["n"] for _ in range(3)] == [0, 1, 2]
    over.set()


def _terminate_hint_backends() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity"
            " WHERE application_name = 'holdfast-hints' AND datname = current_database()"
        )
        count = int(cursor.fetchone()[0])
    connection.close()
    return count


async def test_a_member_that_left_gets_nothing_more(layer: NotifyChannelLayer) -> None:
    stays, leaves = await layer.new_channel(), await layer.new_channel()
    for channel in (stays, leaves):
        await layer.group_add("live", channel)
    await layer.group_discard("live", leaves)
    await layer.group_send("live", {"type": "hint"})
    async with asyncio.timeout(30):
        await layer.receive(stays)
    assert layer._here().queues[leaves].empty()


async def test_a_reader_that_is_cancelled_leaves_no_queue_and_no_membership(
    layer: NotifyChannelLayer,
) -> None:
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    receiving = asyncio.create_task(layer.receive(channel))
    await asyncio.sleep(0)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert layer._here().queues == {}
    assert layer._here().groups == {}


async def test_a_full_channel_refuses_and_a_slow_member_of_a_group_misses_messages(
    other: NotifyChannelLayer,
) -> None:
    slow, quick = await other.new_channel(), await other.new_channel()
    for number in range(100):
        await other.send(slow, {"type": "hint", "n": number})
    with pytest.raises(ChannelFull):
        await other.send(slow, {"type": "hint", "n": 100})
    for channel in (slow, quick):
        await other.group_add("live", channel)
    await other.group_send("live", {"type": "hint", "n": 101})
    async with asyncio.timeout(30):
        assert (await other.receive(quick))["n"] == 101
    assert other._here().queues[slow].qsize() == 100


async def test_a_message_larger_than_one_notification_is_refused(
    layer: NotifyChannelLayer,
) -> None:
    with pytest.raises(HintTooLarge):
        await layer.group_send("live", {"type": "hint", "text": "x" * ENVELOPE_MAX_BYTES})


async def test_a_send_to_an_unreachable_database_fails_and_the_next_one_works(
    layer: NotifyChannelLayer, settings: Settings
) -> None:
    settings.DIRECT_DATABASE_URL = "postgresql://holdfast@127.0.0.1:1/holdfast"
    with pytest.raises(psycopg.OperationalError):
        await layer.group_send("live", {"type": "hint"})
    settings.DIRECT_DATABASE_URL = ""
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    await layer.group_send("live", {"type": "hint"})
    async with asyncio.timeout(30):
        await layer.receive(channel)


# each of them is JSON or nearly so, and breaks its reader in another place
UNREADABLE: Final = (
    "not json",
    "[1]",
    '{"s": "x", "n": 1}',
    '{"s": "x", "n": Infinity, "m": {}}',
    '{"s": "x", "n": 1, "g": [1], "m": {}}',
    '{"s": "x", "n": 2, "c": {}, "m": {}}',
    "[" * 7_000,
)


@pytest.mark.parametrize("payload", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_an_unreadable_notification_is_dropped(
    layer: NotifyChannelLayer, database_url: str, payload: str
) -> None:
    channel = await layer.new_channel()
    await layer.group_add("live", channel)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as raw:
        await raw.execute("SELECT pg_notify('holdfast_hints', %s)", [payload])
    await layer.group_send("live", {"type": "hint"})
    async with asyncio.timeout(30):
        await layer.receive(channel)
