"""The live view opens to its owner alone, and closes when the permission is taken back."""

from __future__ import annotations

import time

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db.models.functions import Now
from django.test import Client
from pytest_django.fixtures import Settings

from recovery.executor import in_thread
from tests.factories import TurnFactory
from tests.support.live import REPAIRED_SECONDS, LiveClient
from tests.turns.consumers.commits import write
from turns.models import ApiToken, Turn
from turns.projection import Cursor
from turns.transitions import delete_conversation

pytestmark = pytest.mark.django_db(transaction=True)


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
