from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from config.settings import database


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


def test_another_database_than_postgresql_is_refused() -> None:
    with pytest.raises(ImproperlyConfigured):
        database("sqlite:///db.sqlite3")
