"""The live view and the API through a real server: sockets, close codes, restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from recovery.executor import in_thread
from tests.browser.web import Web
from tests.factories import TextChunkFactory, TurnFactory, UserFactory, fence_of
from tests.support.live import Shown
from turns import bounds, events
from turns.models import Turn
from turns.tokens import create_token
from turns.transitions import finish_turn

pytestmark = pytest.mark.django_db(transaction=True)
SECONDS = 20.0


@pytest.fixture
def turn() -> Turn:
    turn = TurnFactory(running=True, asked=True)
    assert turn.conversation.owner_id
    return turn


@pytest.fixture
def token(turn: Turn) -> str:
    return create_token(turn.conversation.owner_id)


@pytest.fixture
def web(turn: Turn, process_environment: dict[str, str], tmp_path: Path) -> Iterator[Web]:
    web = Web(process_environment, tmp_path / "web.log")
    web.start()
    yield web
    web.kill()


@asynccontextmanager
async def viewing(
    web: Web, conversation: object, token: str, shown: Shown | None = None
) -> AsyncIterator[ClientConnection]:
    address = f"ws://127.0.0.1:{web.port}/ws/conversations/{conversation}/"
    if shown is not None:
        address += f"?after={shown.cursor}"
    async with connect(address, additional_headers={"authorization": f"Bearer {token}"}) as s:
        yield s


async def next_of(socket: ClientConnection, shown: Shown) -> None:
    async with asyncio.timeout(SECONDS):
        shown.apply(json.loads(await socket.recv()))


async def write(turn: Turn, *texts: str) -> None:
    def commit() -> None:
        for text in texts:
            TextChunkFactory(turn=turn, text=text)

    await in_thread(commit)
    events.announce(turn.conversation_id)


async def test_a_view_survives_the_death_of_its_server(
    web: Web, turn: Turn, token: str
) -> None:
    """failure H45"""
    shown = Shown()

    def text() -> str:
        return str(shown.answer_to(str(turn.pk))["text"])

    async with viewing(web, turn.conversation_id, token) as socket:
        await next_of(socket, shown)
        await write(turn, "One ", "two ")
        while text() != "One two ":
            await next_of(socket, shown)
        web.kill()
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    await write(turn, "three ")
    web.start()
    async with viewing(web, turn.conversation_id, token, shown) as socket:
        while text() != "One two three ":
            await next_of(socket, shown)
        await write(turn, "four")
        while text() != "One two three four":
            await next_of(socket, shown)
    await in_thread(lambda: finish_turn(fence_of(turn), Turn.State.COMPLETED, last_seq=4))
    async with viewing(web, turn.conversation_id, token, shown) as socket:
        while shown.turn is None or shown.turn["state"] != "completed":
            await next_of(socket, shown)
    assert text() == "One two three four"
    assert [frame["type"] for frame in shown.frames].count("snapshot") == 1


async def closed_with(socket: ClientConnection) -> int | None:
    """Return the code the server closes with, whatever it sends before."""
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                await socket.recv()
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


async def test_a_real_client_is_told_why_it_is_turned_away(
    web: Web, turn: Turn, token: str
) -> None:
    async with viewing(web, turn.conversation_id, "holdfast_wrong") as socket:
        assert await closed_with(socket) == 4401
    async with viewing(web, "999999", token) as socket:
        assert await closed_with(socket) == 4404
    other = await in_thread(lambda: create_token(UserFactory().pk))
    async with viewing(web, turn.conversation_id, other) as socket:
        assert await closed_with(socket) == 4404
    async with connect(f"ws://127.0.0.1:{web.port}/ws/elsewhere") as socket:
        assert await closed_with(socket) == 4404
    async with viewing(web, turn.conversation_id, token) as socket:
        await socket.send("x" * (bounds.FRAME_IN_MAX_BYTES + 1))
        assert await closed_with(socket) == 4413


async def test_a_body_over_its_bound_is_refused_by_the_real_server(
    web: Web, turn: Turn, token: str
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 300_000

    async with httpx.AsyncClient(base_url=web.url) as client:
        client.headers["authorization"] = f"Bearer {token}"
        path = f"/api/v1/conversations/{turn.conversation_id}/turns"
        for body in (b"x" * 1_100_000, pieces()):
            answer = await client.post(path, content=body)
            assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            assert answer.json()["code"] == "request_too_large"
        answer = await client.get(f"/api/v1/turns/{turn.pk}")
        assert answer.status_code == HTTPStatus.OK
