"""The live view: nothing is lost and nothing comes twice, wherever a view begins to follow."""

from __future__ import annotations

import asyncio
import copy

import psycopg
import pytest

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import TurnFactory
from tests.support.live import LiveClient, Shown
from tests.turns.consumers.commits import finish, rename_nothing, stored_texts, write
from turns.models import Turn
from turns.projection import Cursor
from turns.transitions import admit_turn, delete_message, edit_message, rename_conversation

pytestmark = pytest.mark.django_db(transaction=True)


async def test_text_committed_between_join_and_snapshot_is_shown_once(
    turn: Turn, token: dict[str, str], database_url: str
) -> None:
    """failure H46"""
    await write(turn, "before ")
    gate = await psycopg.AsyncConnection.connect(database_url)
    await gate.execute("LOCK TABLE turns_conversation IN ACCESS EXCLUSIVE MODE")
    client = await LiveClient(turn.conversation_id, token).connect()
    await until_blocked(database_url)
    await write(turn, "between ")
    await gate.commit()
    await gate.close()

    await client.next()
    await write(turn, "after")
    await client.until("text", seq=3)
    assert client.shown.answer_to(str(turn.pk))["text"] == "before between after"
    await client.leave()


async def until_blocked(database_url: str) -> None:
    """Return when PostgreSQL reports the reader waiting for a lock."""
    waiting = """SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database()
                 AND application_name = 'holdfast live' AND wait_event_type = 'Lock'"""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as look:
        async with asyncio.timeout(60):
            while (await (await look.execute(waiting)).fetchone()) == (0,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # time: look again


async def test_a_reconnect_at_any_cursor_goes_on_without_loss_or_repeat(
    turn: Turn, token: dict[str, str]
) -> None:
    """failure H45, with the turn still running and after its end."""
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    stages: list[Shown] = []
    for text in ("Ä ", "two ", "three "):
        await write(turn, text)
        await client.until("text", text=text)
        stages.append(copy.deepcopy(client.shown))
    await client.leave()

    async def catch_up(expected: str, state: str) -> None:
        for stage in stages:
            again = await LiveClient(
                turn.conversation_id, token, after=stage.cursor, shown=copy.deepcopy(stage)
            ).connect()
            answer = again.shown.answer_to
            while (answer(str(turn.pk))["text"], answer(str(turn.pk))["state"]) != (
                expected,
                state,
            ):
                await again.next()
            await again.leave()

    await write(turn, "four ")
    await catch_up("Ä two three four ", "streaming")
    await finish(turn)
    await catch_up("Ä two three four ", "complete")
    # and with the turn after it
    await in_thread(admit_turn, turn.conversation.owner_id, turn.conversation_id, "More?")
    for stage in stages:
        again = await LiveClient(
            turn.conversation_id, token, after=stage.cursor, shown=stage
        ).connect()
        await again.until("turn", state="queued")
        assert again.shown.texts == await stored_texts(turn.conversation_id)
        await again.leave()


async def test_a_cursor_into_folded_text_is_answered_by_replacement(
    turn: Turn, token: dict[str, str]
) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    await write(turn, "What was strea", "med")
    await client.until("text", seq=2)
    shown = await client.leave()
    await finish(turn, text="What was said in the end")

    again = await LiveClient(
        turn.conversation_id, token, after=shown.cursor, shown=shown
    ).connect()
    await again.until("turn", state="completed")
    assert again.shown.texts == await stored_texts(turn.conversation_id)
    assert "text" not in {f["type"] for f in again.shown.frames[-2:]}
    await again.leave()


async def test_a_reconnect_with_nothing_new_is_sent_nothing_until_there_is(
    turn: Turn, token: dict[str, str]
) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    shown = (await client.next(), await client.leave())[1]
    again = await LiveClient(
        turn.conversation_id, token, after=shown.cursor, shown=shown
    ).connect()
    await write(turn, "new")
    assert (await again.next())["type"] == "text"
    await again.leave()


@pytest.mark.parametrize(
    "cursor", ["", "x", "1.2", "9.9.9.9.9", "99999999.0.0.0.0", "0.{other}.0.0.0"]
)
async def test_a_cursor_of_another_history_is_answered_by_a_snapshot_of_this_one(
    turn: Turn, token: dict[str, str], cursor: str
) -> None:
    foreign = await in_thread(lambda: TurnFactory(running=True, asked=True))
    await write(foreign, "somebody else's text")
    await write(turn, "mine")
    after = cursor.format(other=foreign.pk)
    client = await LiveClient(turn.conversation_id, token, after=after).connect()
    assert (await client.next())["type"] == "snapshot"
    assert client.shown.answer_to(str(turn.pk))["text"] == "mine"
    await client.leave()


async def test_text_of_a_cursor_that_was_never_stored_is_replaced(
    turn: Turn, token: dict[str, str]
) -> None:
    """A standby took over that had not received the last chunks."""
    await write(turn, "kept")
    after = str(Cursor(turn.conversation.revision, turn.pk, 7))
    client = await LiveClient(turn.conversation_id, token, after=after).connect()
    assert (await client.next())["type"] == "snapshot"
    await client.leave()


async def test_late_text_of_one_turn_never_enters_another(
    turn: Turn, token: dict[str, str]
) -> None:
    """failures H24, H25: every frame of text names its turn."""
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    await write(turn, "first")
    await client.until("text")
    await finish(turn, state=Turn.State.INTERRUPTED, error_code=ErrorCode.RUNTIME_LOST)
    second = await in_thread(
        lambda: TurnFactory(conversation=turn.conversation, running=True, asked=True)
    )
    await in_thread(rename_nothing, second)
    await write(second, "second")
    await client.until("text", turn_id=str(second.pk))
    assert client.shown.answer_to(str(turn.pk))["text"] == "first"
    assert client.shown.answer_to(str(turn.pk))["state"] == "interrupted"
    assert client.shown.answer_to(str(second.pk))["text"] == "second"
    await client.leave()


async def test_many_turns_missed_at_once_are_shown_by_a_snapshot(
    turn: Turn, token: dict[str, str]
) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    shown = (await client.next(), await client.leave())[1]
    await finish(turn)

    def more() -> None:
        for _ in range(5):
            TurnFactory(conversation=turn.conversation, completed=True)
        rename_nothing(turn)

    await in_thread(more)
    again = await LiveClient(
        turn.conversation_id, token, after=shown.cursor, shown=shown
    ).connect()
    assert (await again.next())["type"] == "snapshot"
    assert again.shown.texts == await stored_texts(turn.conversation_id)
    await again.leave()


@pytest.mark.parametrize("change", ["rename", "edit", "remove"])
async def test_what_a_person_rewrites_is_shown_anew(
    turn: Turn, token: dict[str, str], change: str
) -> None:
    await finish(turn)
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    owner_id = turn.conversation.owner_id
    match change:
        case "rename":
            await in_thread(rename_conversation, owner_id, turn.conversation_id, "Trees")
        case "edit":
            await in_thread(edit_message, owner_id, turn.user_message_id, "Corrected")
        case _:
            await in_thread(delete_message, owner_id, turn.user_message_id)
    await client.until("snapshot")
    assert client.shown.texts == await stored_texts(turn.conversation_id)
    assert client.shown.conversation["title"] == ("Trees" if change == "rename" else "")
    await client.leave()
