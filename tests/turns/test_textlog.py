"""The text log: what is shown is durable, in order, once, and one turn's trouble is its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connection, connections
from django.db.models.functions import Now
from psycopg import AsyncConnection

from recovery.errors import ErrorCode, StaleFence
from recovery.fences import Fence, claimed_mark, marked_by_row
from tests.support.turns import claim_anew
from turns import bounds, textlog
from turns.limits import Limits
from turns.models import Conversation, Message, TextChunk, Turn
from turns.pending_text import TextNotStored
from turns.textlog import TextLog

pytestmark = pytest.mark.django_db(transaction=True)


def in_database(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a call on the test's own thread pool, leaving no connection behind."""

    def run() -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            connections.close_all()

    return sync_to_async(run, thread_sensitive=False)()


def running_turn() -> tuple[Fence, int]:
    """Return the fence and conversation of a turn that runs."""
    owner = User.objects.create_user(f"user-{uuid4().hex}")
    conversation = Conversation.objects.create(owner=owner)
    asked = Message.objects.create(
        conversation=conversation, role="user", state="complete", text="?", finished_at=Now()
    )
    answer = Message.objects.create(
        conversation=conversation, role="assistant", state="streaming"
    )
    token = uuid4()
    turn = Turn.objects.create(
        conversation=conversation,
        user_message=asked,
        assistant_message=answer,
        state="running",
        model="scripted",
        limits=Limits().snapshot(),
        owner=uuid4(),
        generation=1,
        claim_token=token,
        write_mark=claimed_mark(1),
        claimed_at=Now(),
        deadline_at=Now(),
        queue_deadline_at=Now(),
        next_dispatch_at=Now(),
        request_digest="0" * 64,
    )
    return Fence(turn.pk, 1, token), conversation.pk


def stored(fence: Fence) -> list[tuple[int, str]]:
    """Return the committed chunks of a turn, in order."""
    return list(
        TextChunk.objects.filter(turn_id=fence.pk).order_by("seq").values_list("seq", "text")
    )


@asynccontextmanager
async def text_log(
    announced: list[int] | None = None, **options: Any
) -> AsyncIterator[TextLog]:
    told = announced if announced is not None else []
    log = TextLog(options.pop("connect", textlog.connect), told.extend, **options)
    log.start()
    try:
        yield log
    finally:
        await log.stop()


async def test_text_is_committed_before_it_is_announced_and_in_its_order(
    database_url: str,
) -> None:
    fence, conversation_id = await in_database(running_turn)
    seen: list[tuple[int, str]] = []

    def look(conversations: Iterable[int]) -> None:
        # a session of its own sees what is committed and nothing else
        with psycopg.connect(database_url) as outside:
            row = outside.execute(
                "SELECT string_agg(text, '' ORDER BY seq) FROM turns_textchunk "
                "WHERE turn_id = %s",
                [fence.pk],
            ).fetchone()
        seen.extend((each, row[0] if row else "") for each in conversations)

    log = TextLog(textlog.connect, look)
    log.start()
    log.open(fence, conversation_id)
    for word in ("one ", "two ", "three"):
        await log.write(fence, word)
    assert seen == []
    last = await log.flushed(fence)
    await log.stop()
    chunks = await in_database(stored, fence)
    assert "".join(text for _, text in chunks) == "one two three"
    assert [seq for seq, _ in chunks] == list(range(1, last + 1))
    assert seen == [(conversation_id, "one two three")]


async def test_all_turns_of_a_process_share_one_commit_a_tick() -> None:
    turns = [await in_database(running_turn) for _ in range(20)]
    statements = 0

    class Counting(AsyncConnection):
        async def execute(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal statements
            statements += 1
            return await super().execute(*args, **kwargs)

    async def connect() -> AsyncConnection:
        opened = await textlog.connect()
        opened.__class__ = Counting
        return opened

    async with text_log(connect=connect) as log:
        for fence, conversation_id in turns:
            log.open(fence, conversation_id)
            await log.write(fence, f"text of {fence.pk}")
        await asyncio.gather(*(log.flushed(fence) for fence, _ in turns))
    assert statements == 1
    for fence, _ in turns:
        assert await in_database(stored, fence) == [(1, f"text of {fence.pk}")]


async def test_long_text_is_cut_into_chunks_between_characters() -> None:
    fence, conversation_id = await in_database(running_turn)
    text = "aé€😀" * 5_000
    async with text_log() as log:
        log.open(fence, conversation_id)
        await log.write(fence, text)
        await log.flushed(fence)
    chunks = await in_database(stored, fence)
    assert "".join(part for _, part in chunks) == text
    assert max(len(part.encode()) for _, part in chunks) <= bounds.CHUNK_MAX_BYTES


async def test_text_that_cannot_be_stored_is_repaired() -> None:
    fence, conversation_id = await in_database(running_turn)
    async with text_log() as log:
        log.open(fence, conversation_id)
        await log.write(fence, "a\x00b\ud800c")
        await log.flushed(fence)
    assert await in_database(stored, fence) == [(1, "a\ufffdb\ufffdc")]


@pytest.mark.parametrize("change", ["ended", "claimed anew"])
async def test_a_stale_owner_cannot_write_text(change: str) -> None:
    fence, conversation_id = await in_database(running_turn)

    def overtake() -> None:
        if change == "ended":
            Turn.objects.filter(pk=fence.pk).update(
                state="interrupted",
                error_code="runtime_lost",
                finished_at=Now(),
                write_mark=marked_by_row(),
            )
        else:
            claim_anew(fence.pk)

    async with text_log() as log:
        log.open(fence, conversation_id)
        await log.write(fence, "kept")
        assert await log.flushed(fence) == 1
        await in_database(overtake)
        await log.write(fence, "too late")
        with pytest.raises(StaleFence):
            await log.flushed(fence)
        with pytest.raises(StaleFence):
            await log.write(fence, "more")
    assert await in_database(stored, fence) == [(1, "kept")]


async def test_a_turn_somebody_holds_is_written_when_it_is_free_and_others_do_not_wait() -> (
    None
):
    held, held_conversation = await in_database(running_turn)
    free, free_conversation = await in_database(running_turn)
    async with text_log() as log, await textlog.connect() as other:
        log.open(held, held_conversation)
        log.open(free, free_conversation)
        async with other.transaction():
            await other.execute(
                "SELECT FROM turns_turn WHERE id = %s FOR NO KEY UPDATE", [held.pk]
            )
            await log.write(held, "patient")
            await log.write(free, "at once")
            assert await log.flushed(free) == 1
            assert log.written(held) == 0
        assert await log.flushed(held) == 1
    assert await in_database(stored, held) == [(1, "patient")]


async def test_one_poison_text_ends_its_turn_and_the_others_go_on() -> None:
    # The edge repairs what PostgreSQL refuses, so the database is made to refuse a word.
    def poison(create: bool) -> None:
        with connection.cursor() as cursor:
            if create:
                cursor.execute(
                    "ALTER TABLE turns_textchunk ADD CONSTRAINT poison "
                    "CHECK (text NOT LIKE 'poison%')"
                )
            else:
                cursor.execute("ALTER TABLE turns_textchunk DROP CONSTRAINT poison")

    turns = [await in_database(running_turn) for _ in range(9)]
    await in_database(poison, create=True)
    try:
        async with text_log() as log:
            for fence, conversation_id in turns:
                log.open(fence, conversation_id)
            for index, (fence, _) in enumerate(turns):
                await log.write(fence, "poison" if index == 4 else f"fine {index}")
            for index, (fence, _) in enumerate(turns):
                if index == 4:
                    with pytest.raises(TextNotStored) as refused:
                        await log.flushed(fence)
                    assert refused.value.code == ErrorCode.INVALID_TEXT
                else:
                    assert await log.flushed(fence) == 1
        for index, (fence, _) in enumerate(turns):
            expected = [] if index == 4 else [(1, f"fine {index}")]
            assert await in_database(stored, fence) == expected
    finally:
        await in_database(poison, create=False)


class Unreliable:
    """Opens connections of which some lose the answer to a statement, before or after it
    ran.
    """

    def __init__(self, *losses: str) -> None:
        self.losses = list(losses)
        self.statements: Counter[str] = Counter()

    async def __call__(self) -> AsyncConnection:
        opened = await textlog.connect()
        unreliable = self

        class Losing(AsyncConnection):
            async def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
                kind = "flush" if query == textlog.FLUSH else "reread"
                unreliable.statements[kind] += 1
                loss = unreliable.losses.pop(0) if kind == "flush" and unreliable.losses else ""
                if loss == "before":
                    await self.close()
                    raise psycopg.OperationalError("lost")
                cursor = await super().execute(query, *args, **kwargs)
                if loss == "after":
                    await self.close()
                    raise psycopg.OperationalError("lost")
                return cursor

        opened.__class__ = Losing
        return opened


@pytest.mark.parametrize("loss", ["before", "after"])
async def test_after_an_unknown_commit_stored_text_is_compared_before_it_is_announced(
    loss: str,
) -> None:
    fence, conversation_id = await in_database(running_turn)
    announced: list[int] = []
    unreliable = Unreliable(loss)
    async with text_log(announced, connect=unreliable) as log:
        log.open(fence, conversation_id)
        await log.write(fence, "once")
        assert await log.flushed(fence) == 1
        await log.write(fence, " and once")
        assert await log.flushed(fence) == 2
    assert await in_database(stored, fence) == [(1, "once"), (2, " and once")]
    assert announced == [conversation_id] * 2
    # one flush more where the first was lost before it ran
    assert unreliable.statements["reread"] == 1
    assert unreliable.statements["flush"] == (3 if loss == "before" else 2)


async def test_a_commit_that_surfaces_late_is_compared_and_not_repeated() -> None:
    fence, conversation_id = await in_database(running_turn)

    def write_it() -> None:
        TextChunk.objects.create(turn_id=fence.pk, seq=1, generation=1, text="once")

    async with text_log() as log:
        log.open(fence, conversation_id)
        # what a backend we lost sight of committed between our looks
        await in_database(write_it)
        await log.write(fence, "once")
        assert await log.flushed(fence) == 1
        await log.write(fence, " more")
        assert await log.flushed(fence) == 2
    assert await in_database(stored, fence) == [(1, "once"), (2, " more")]


async def test_somebody_elses_text_under_our_seq_stops_the_turn() -> None:
    fence, conversation_id = await in_database(running_turn)

    def write_it() -> None:
        TextChunk.objects.create(turn_id=fence.pk, seq=1, generation=1, text="not ours")

    await in_database(write_it)
    async with text_log() as log:
        log.open(fence, conversation_id)
        await log.write(fence, "ours")
        with pytest.raises(StaleFence):
            await log.flushed(fence)
    assert await in_database(stored, fence) == [(1, "not ours")]


async def test_while_the_database_is_away_a_turn_holds_what_it_may_and_then_fails() -> None:
    fence, conversation_id = await in_database(running_turn)
    modest, modest_conversation = await in_database(running_turn)
    away = True

    async def connect() -> AsyncConnection:
        if away:
            raise psycopg.OperationalError("away")
        return await textlog.connect()

    async with text_log(connect=connect, held_max_bytes=1_000, room_seconds=0.2) as log:
        log.open(fence, conversation_id)
        log.open(modest, modest_conversation)
        await log.write(modest, "small")
        await log.write(fence, "x" * 900)
        with pytest.raises(TextNotStored) as refused:
            await log.write(fence, "y" * 200)
        assert refused.value.code == ErrorCode.STORAGE_UNAVAILABLE
        away = False
        assert await log.flushed(modest) == 1
    assert await in_database(stored, modest) == [(1, "small")]
    assert await in_database(stored, fence) == []


async def test_a_turn_that_bursts_waits_for_room_and_loses_nothing() -> None:
    fence, conversation_id = await in_database(running_turn)
    async with text_log(held_max_bytes=2_000) as log:
        log.open(fence, conversation_id)
        for _ in range(10):
            await log.write(fence, "z" * 900)
        await log.flushed(fence)
    assert sum(len(text) for _, text in await in_database(stored, fence)) == 9_000


async def test_what_a_dead_runtime_still_holds_is_not_written() -> None:
    fence, conversation_id = await in_database(running_turn)
    later, later_conversation = await in_database(running_turn)
    async with text_log() as log:
        log.open(fence, conversation_id)
        await log.write(fence, "held")
        await log.abandon([fence])
        with pytest.raises(StaleFence):
            await log.flushed(fence)
        log.close(fence)
        log.open(later, later_conversation)
        await log.write(later, "of the new runtime")
        assert await log.flushed(later) == 1
    assert await in_database(stored, fence) == []
