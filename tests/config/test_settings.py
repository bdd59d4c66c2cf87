from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, connections
from pytest_django.fixtures import Settings

from config import channel_layer
from config.settings import database
from recovery import runtimes
from turns import live, textlog

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
from config import settings as s
print(s.HOLDFAST_HOME, s.EMBEDDED_DATABASE, s.LLM_API, s.LLM_CONTEXT_BYTES,
      s.HOLDFAST_LEASE_SECONDS, len(s.ALLOWED_HOSTS))
"""


@pytest.mark.django_db
def test_every_connection_bounds_its_waiting() -> None:
    with connection.cursor() as cursor:
        shown = {}
        for name in (
            "idle_in_transaction_session_timeout",
            "lock_timeout",
            "statement_timeout",
        ):
            cursor.execute(f"SHOW {name}")
            shown[name] = cursor.fetchone()[0]
    assert shown == {
        "idle_in_transaction_session_timeout": "5s",
        "lock_timeout": "5s",
        "statement_timeout": "30s",
    }


def test_an_address_with_quoted_characters_reaches_the_driver_as_meant() -> None:
    described = database("postgresql://me%40home:p%2Fw@db.example:5433/my%20db?sslmode=require")
    assert described["USER"] == "me@home"
    assert described["PASSWORD"] == "p/w"
    assert described["NAME"] == "my db"
    assert described["PORT"] == "5433"
    assert described["OPTIONS"]["sslmode"] == "require"  # type: ignore[index]


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me@%2Frun%2FPG/db", ("/run/PG", "", "me", "db")),
        ("postgresql:///db?host=/run/PG&port=5433&user=me", ("/run/PG", "5433", "me", "db")),
        ("postgres://me@one:1,two:2/db", ("one,two", "1,2", "me", "db")),
        ("postgresql://me@[::1]:5432/db", ("::1", "5432", "me", "db")),
    ],
)
def test_a_database_is_found_wherever_libpq_finds_it(
    url: str, place: tuple[str, str, str, str]
) -> None:
    described = database(url)
    names = ("HOST", "PORT", "USER", "NAME")
    assert tuple(described[name] for name in names) == place
    options = cast(dict[str, str], described["OPTIONS"])
    assert not options.keys() & {"host", "port", "user", "dbname", "password"}


def test_a_password_may_hold_what_an_address_need_not_quote() -> None:
    assert database("postgresql://me:hush#hu+sh@db/x")["PASSWORD"] == "hush#hu+sh"


def test_options_of_the_address_do_not_take_the_bounds_away() -> None:
    described = database("postgresql://me@db/db?options=-c%20search_path%3Dmine")
    options = cast(dict[str, str], described["OPTIONS"])["options"]
    assert options.endswith("-c search_path=mine")
    assert "-c lock_timeout=5s" in options


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:hush@[/x", "postgresql://me:hu%zzsh@db/x", "postgres://me:hush@db/x?y=z"],
)
def test_an_address_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        database(url)
    assert refused.value.__suppress_context__
    assert "me:hu" not in str(refused.value)


@pytest.fixture
def described_in_full() -> Iterator[dict[str, str]]:
    """An address with all an operator may say: a socket, a certificate, several more."""
    said = {
        "host": "/nowhere",
        "sslcert": "/c.crt",
        "sslkey": "/c.key",
        "target_session_attrs": "read-write",
        "options": "-c search_path=mine",
    }
    described = database("postgresql:///db?" + urlencode(said, quote_via=quote))
    handler = connections["default"]
    before = dict(handler.settings_dict)
    handler.settings_dict.update(described)
    yield said
    handler.settings_dict.clear()
    handler.settings_dict.update(before)


@pytest.mark.usefixtures("direct_is_unset")
async def test_every_session_of_our_own_goes_where_djangos_go(
    described_in_full: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    async def note(**parameters: Any) -> None:
        asked.append(parameters)

    monkeypatch.setattr(psycopg.AsyncConnection, "connect", note)
    await live._connect()
    await textlog.connect()
    await channel_layer.connect()
    asked.append(runtimes._session_parameters("name"))
    for parameters in asked:
        for name, value in described_in_full.items():
            assert value in parameters[name]


@pytest.fixture
def direct_is_unset(settings: Settings) -> None:
    settings.DIRECT_DATABASE_URL = ""


def test_a_variable_set_to_nothing_is_unset(tmp_path: Path) -> None:
    names = re.findall(
        r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE
    )
    assert len(names) > 15
    environment = {**os.environ, **dict.fromkeys(names, ""), "TMPDIR": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.split() == [str(ROOT / ".holdfast"), "True", "local", "4096", "15.0", "3"]


@pytest.mark.parametrize("name", ["EMBEDDINGS_DIMENSIONS", "HOLDFAST_LEASE_SECONDS"])
def test_a_number_that_is_none_is_refused_by_its_name(name: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, name: "a secret", "DJANGO_SETTINGS_MODULE": "config.settings"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode != 0
    assert told.stderr.splitlines()[-1].endswith(f"{name} must be a number")


def test_another_database_than_postgresql_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured):
        database("sqlite:///db.sqlite3")
