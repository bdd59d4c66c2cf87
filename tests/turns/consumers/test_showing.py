"""The live view shows what is committed, to whoever looks while it is."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from recovery.executor import in_thread
from tests.factories import ConversationFactory, ToolStepFactory
from tests.support.live import LiveClient
from tests.turns.consumers.commits import bearer, finish, rename_nothing, write
from turns.models import Turn
from turns.transitions import admit_turn

pytestmark = pytest.mark.django_db(transaction=True)


async def test_a_view_begins_with_a_snapshot_and_goes_on_with_what_is_committed(
    turn: Turn, token: dict[str, str]
) -> None:
    await write(turn, "One ", "two ")
    client = await LiveClient(turn.conversation_id, token).connect()

    snapshot = await client.next()
    assert snapshot["type"] == "snapshot"
    assert snapshot["conversation"]["id"] == str(turn.conversation_id)
    assert [m["role"] for m in snapshot["messages"]] == ["assistant", "user"]
    assert snapshot["messages"][0]["text"] == "One two "
    assert snapshot["turn"]["state"] == "running"

    await write(turn, "three")
    text = await client.until("text")
    assert (text["turn_id"], text["seq"], text["text"]) == (str(turn.pk), 3, "three")

    await finish(turn)
    message = await client.until("message", state="complete")
    assert message["text"] == "One two three"
    assert message["html"] == "<p>One two three</p>\n"
    ended = await client.until("turn", state="completed")
    assert ended["assistant"]["text"] == "One two three"
    await client.leave()


async def test_a_turn_is_followed_from_its_question_on() -> None:
    conversation = await in_thread(ConversationFactory)
    token = await in_thread(bearer, conversation.owner_id)
    client = await LiveClient(conversation.pk, token).connect()
    assert (await client.next())["turn"] is None

    await in_thread(admit_turn, conversation.owner_id, conversation.pk, "Why?")
    await client.until("turn", state="queued")
    assert list(client.shown.texts.values()) == ["Why?", ""]
    await client.leave()


async def test_tool_steps_are_shown_as_they_change(turn: Turn, token: dict[str, str]) -> None:
    """behaviour AD18"""
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()

    def request() -> None:
        turn.provider_steps.update(state="completed", finished_at=Now())
        ToolStepFactory(turn=turn, provider_step=turn.provider_steps.get(), running=True)
        rename_nothing(turn)

    await in_thread(request)
    steps = (await client.until("turn"))["steps"]
    assert [(s["kind"], s["name"], s["state"]) for s in steps] == [
        ("provider", "scripted", "completed"),
        ("tool", "search_history", "running"),
    ]
    await client.leave()
