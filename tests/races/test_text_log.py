"""A turn whose text gives up while its statement is under way takes no other turn with it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests import factories as make
from tests.support.waiting import wait_until
from turns import textlog
from turns.models import TextChunk, Turn
from turns.pending_text import TextNotStored
from turns.textlog import TextLog

pytestmark = pytest.mark.django_db(transaction=True)


def stored(turn: Turn) -> str:
    chunks = TextChunk.objects.filter(turn_id=turn.pk).order_by("seq")
    return "".join(chunks.values_list("text", flat=True))


async def test_the_log_outlives_a_turn_that_gave_up_while_its_text_was_being_written(
    database_url: str,
) -> None:
    impatient, other = [
        await in_thread(make.TurnFactory.create, running=True, asked=True) for _ in range(2)
    ]
    fences = make.fence_of(impatient), make.fence_of(other)
    log = TextLog(textlog.connect, lambda _: None, held_max_bytes=8, room_seconds=0.2)
    with psycopg.connect(database_url) as rival, psycopg.connect(database_url) as outside:
        # the same seq, not committed: the flush must wait to see what becomes of it
        rival.execute(
            "INSERT INTO turns_textchunk (turn_id, seq, generation, text) "
            "VALUES (%s, 1, 1, 'not to be')",
            [impatient.pk],
        )

        def flush_waits() -> bool:
            row = outside.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
                [rival.info.backend_pid],
            ).fetchone()
            outside.rollback()
            return bool(row and row[0])

        log.start()
        try:
            for turn, fence in zip((impatient, other), fences, strict=True):
                log.open(fence, turn.conversation_id)
            await log.write(fences[0], "x" * 8)
            await asyncio.to_thread(wait_until, flush_waits, "the flush waits")
            with pytest.raises(TextNotStored) as gave_up:
                await log.write(fences[0], "y" * 8)
            assert gave_up.value.code == ErrorCode.STORAGE_UNAVAILABLE
            rival.rollback()

            await log.write(fences[1], "still ")
            async with asyncio.timeout(10):
                assert await log.flushed(fences[1]) == 1
        finally:
            await log.stop()
    assert await in_thread(stored, other) == "still "
    # it was on its way when the turn gave up, and is committed: an end folds it
    assert await in_thread(stored, impatient) == "x" * 8
