from __future__ import annotations

from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import pytest
import pytest_asyncio
from django.db import connections
from django.test import Client, override_settings

from config.asgi import application

STYLE = "/static/admin/css/base.css"


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def test_a_static_file_is_served_whole_and_then_from_the_browsers_cache(
    client: httpx.AsyncClient,
) -> None:
    first = await client.get(STYLE)
    assert first.status_code == HTTPStatus.OK
    assert first.headers["content-type"].startswith("text/css")
    assert len(first.content) == int(first.headers["content-length"])
    again = await client.get(STYLE, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == HTTPStatus.NOT_MODIFIED
    assert again.content == b""


async def test_every_answer_forbids_what_is_not_ours(client: httpx.AsyncClient) -> None:
    for path in (STYLE, "/login/", "/api/v1/nothing", "/nothing"):
        policy = (await client.get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path


async def test_nothing_outside_the_static_files_can_be_read(client: httpx.AsyncClient) -> None:
    for path in (
        "/static/../config/settings.py",
        "/static/%2e%2e/manage.py",
        "/static/nothing",
    ):
        assert (await client.get(path)).status_code == HTTPStatus.NOT_FOUND, path


def test_a_static_file_is_served_to_synchronous_clients_too() -> None:
    answer = Client().get(STYLE)
    assert answer.status_code == HTTPStatus.OK
    assert answer.content


@pytest.mark.django_db
def test_health_is_ok_while_the_database_answers() -> None:
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.json()) == (HTTPStatus.OK, {"status": "ok"})


@pytest.mark.django_db(transaction=True)
async def test_health_is_told_under_any_name_and_scheme(client: httpx.AsyncClient) -> None:
    """Load balancers know a process by its address."""
    with override_settings(SECURE_SSL_REDIRECT=True):
        answer = await client.get("/healthz", headers={"host": "10.1.2.3:8000"})
    assert answer.status_code == HTTPStatus.OK
    assert (await client.get("/login/", headers={"host": "10.1.2.3"})).status_code == 400


@pytest.mark.django_db(transaction=True)
async def test_health_says_so_when_the_database_is_away(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each request has a thread, and so a connection, of its own.
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", "1")
    answer = await client.get("/healthz")
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.json() == {"status": "unavailable"}
