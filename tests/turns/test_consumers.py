"""The live view over its WebSocket: everything committed is shown once, to its owner alone."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models.functions import Now
from django.test import Client
from pytest_django.fixtures import Settings

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from tests.factories import (
    ConversationFactory,
    MessageFactory,
    TextChunkFactory,
    ToolStepFactory,
    TurnFactory,
    fence_of,
)
from tests.support.live import LiveClient, Shown
from turns import bounds, credentials, events, live
from turns.models import ApiToken, Message, Turn
from turns.projection import Cursor
from turns.tokens import create_token
from turns.transitions import (
    admit_turn,
    delete_conversation,
    delete_message,
    edit_message,
    finish_turn,
    rename_conversation,
)

pytestmark = pytest.mark.django_db(transaction=True)
# The slow poll, and time to read on a busy machine; far below a lease.
REPAIRED_SECONDS = bounds.SLOW_POLL_SECONDS + 1.5


@pytest.fixture(autouse=True)
async def reader() -> AsyncIterator[live.Reader]:
    yield live.start()
    await live.stop()
    if hasattr(layer := get_channel_layer(), "close"):
        await layer.close()


@pytest.fixture
def turn() -> Turn:
    """A running turn of which a provider was asked an answer."""
    turn = TurnFactory(running=True, asked=True)
    assert turn.conversation.owner.is_active  # and is read: a loop may not
    return turn


@pytest.fixture
def token(turn: Turn) -> dict[str, str]:
    """The header that shows the turn's own person."""
    return bearer(turn.conversation.owner_id)


def bearer(user_id: int) -> dict[str, str]:
    return {"authorization": f"Bearer {create_token(user_id)}"}


async def write(turn: Turn, *texts: str, announced: bool = True) -> None:
    """Commit live text as the text log does, a chunk for each of `texts`."""

    def commit() -> None:
        for text in texts:
            TextChunkFactory(turn=turn, text=text)

    await in_thread(commit)
    if announced:
        events.announce(turn.conversation_id)


async def finish(turn: Turn, state: Turn.State = Turn.State.COMPLETED, **outcome: Any) -> None:
    def commit() -> None:
        finish_turn(fence_of(turn), state, last_seq=turn.chunks.count(), **outcome)

    await in_thread(commit)


async def stored_texts(conversation_id: int) -> dict[str, str]:
    """Return the text of each ended message, by id, as PostgreSQL has it."""

    def read() -> dict[str, str]:
        rows = Message.objects.filter(conversation_id=conversation_id)
        return {str(pk): text for pk, text in rows.values_list("pk", "text")}

    return await in_thread(read)


# --- What is shown ---


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


def rename_nothing(turn: Turn) -> None:
    """Raise the revision, as every transition does, and announce it."""
    type(turn.conversation).objects.filter(pk=turn.conversation_id).update(
        revision=turn.conversation.revision + 1
    )
    events.announce(turn.conversation_id)


# --- Nothing lost, nothing twice ---


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
                 WHERE application_name = 'holdfast live' AND wait_event_type = 'Lock'"""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as look:
        async with asyncio.timeout(4.0):
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


# --- What is lost is repaired ---


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


# --- Bounds ---


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


# --- Who may look ---


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer holdfast_nothing"},
        {"authorization": "Basic eA=="},
        {"cookie": "sessionid=unknown"},
        {"cookie": "sessionid=aaaaaaaa\x00"},
        {"cookie": "\x00=;;"},
    ],
)
async def test_nobody_signed_in_is_shown_nothing(turn: Turn, headers: dict[str, str]) -> None:
    client = await LiveClient(turn.conversation_id, headers).connect()
    assert await client.closed() == 4401
    assert client.shown.frames == []


@pytest.mark.parametrize(
    "conversation", ["{foreign}", "999999", "0", "-1", "01", "x", "9" * 30, "1e3"]
)
async def test_foreign_and_unknown_conversations_look_the_same(
    turn: Turn, token: dict[str, str], conversation: str
) -> None:
    """failures H52, H53"""
    foreign = await in_thread(lambda: TurnFactory(running=True))
    client = await LiveClient(
        conversation.format(foreign=foreign.conversation_id), token
    ).connect()
    await write(foreign, "not for you")
    assert await client.closed() == 4404
    assert client.shown.frames == []


async def test_a_cursor_does_not_open_a_foreign_conversation(
    turn: Turn, token: dict[str, str]
) -> None:
    foreign = await in_thread(lambda: TurnFactory(running=True))
    await write(foreign, "not for you")
    after = str(Cursor(0, foreign.pk, 0))
    client = await LiveClient(foreign.conversation_id, token, after=after).connect()
    assert await client.closed() == 4404
    assert client.shown.frames == []


async def test_a_removed_conversation_closes_its_views(
    turn: Turn, token: dict[str, str]
) -> None:
    client = await LiveClient(turn.conversation_id, token).connect()
    await client.next()
    await write(turn, "text")
    await in_thread(delete_conversation, turn.conversation.owner_id, turn.conversation_id)
    assert await client.closed() == 4404


def sign_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


async def test_a_session_opens_its_own_page_and_no_other_site_does(turn: Turn) -> None:
    browser = await in_thread(sign_in, turn.conversation.owner)
    cookie = f"{settings.SESSION_COOKIE_NAME}={browser.cookies['sessionid'].value}"
    client = await LiveClient(
        turn.conversation_id, {"cookie": cookie, "origin": "http://testserver"}
    ).connect()
    assert (await client.next())["type"] == "snapshot"
    await client.leave()

    other = await LiveClient(
        turn.conversation_id, {"cookie": cookie, "origin": "http://elsewhere.test"}
    ).connect()
    assert other.close_code == 1000


@pytest.mark.parametrize(
    "beside",
    ['prefs={"theme": "dark"}', "a[b]=1", "no value", "path=/", "$Version=1", "x=\xe9", "=;;"],
)
async def test_what_other_cookies_say_does_not_sign_anybody_out(
    turn: Turn, beside: str
) -> None:
    """Cookies know no ports: whatever else runs on the machine adds its own."""
    browser = await in_thread(sign_in, turn.conversation.owner)
    own = f"{settings.SESSION_COOKIE_NAME}={browser.cookies['sessionid'].value}"
    for cookie in (f"{beside}; {own}", f"{own}; {beside}"):
        client = await LiveClient(turn.conversation_id, {"cookie": cookie}).connect()
        assert (await client.next())["type"] == "snapshot"
        await client.leave()


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("https://page.example", True),
        ("HTTPS://Page.Example", True),
        ("https://a.b.example", True),
        ("http://page.example", False),
        ("http://a.b.example", False),
        ("https://b.example", True),
        ("https://b.example:8443", False),
        ("https://xb.example", False),
        ("https://page.example:8443", False),
        ("null", False),
        ("http://[", False),
        ("", False),
    ],
)
async def test_an_origin_is_trusted_as_for_other_requests(
    turn: Turn, token: dict[str, str], settings: Settings, origin: str, is_ours: bool
) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://page.example", "https://*.b.example"]
    client = await LiveClient(turn.conversation_id, {**token, "origin": origin}).connect()
    if is_ours:
        assert (await client.next())["type"] == "snapshot"
        await client.leave()
    else:
        assert client.close_code == 1000


@pytest.mark.parametrize("how", ["token", "sign_out", "expiry", "password", "deactivation"])
async def test_a_view_is_closed_when_its_permission_is_taken_back(
    turn: Turn, token: dict[str, str], how: str
) -> None:
    """failure H54"""
    user = turn.conversation.owner
    browser = await in_thread(sign_in, user)
    cookie = f"{settings.SESSION_COOKIE_NAME}={browser.cookies['sessionid'].value}"
    headers = token if how == "token" else {"cookie": cookie}
    client = await LiveClient(turn.conversation_id, headers).connect()
    await client.next()

    def take_back() -> None:
        match how:
            case "token":
                ApiToken.objects.filter(user=user).update(revoked_at=Now())
            case "sign_out":
                browser.logout()
            case "expiry":
                Session.objects.update(expire_date=Now())
            case "password":
                user.set_password("another")
                user.save(update_fields=["password"])
            case _:
                User.objects.filter(pk=user.pk).update(is_active=False)

    await in_thread(take_back)
    began = time.monotonic()
    assert await client.closed() == 4401
    assert time.monotonic() - began < REPAIRED_SECONDS


async def test_an_inactive_person_is_not_signed_in(turn: Turn, token: dict[str, str]) -> None:
    await in_thread(User.objects.filter(pk=turn.conversation.owner_id).update, is_active=False)
    client = await LiveClient(turn.conversation_id, token).connect()
    assert await client.closed() == 4401
