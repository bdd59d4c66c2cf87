"""Transactions see what is committed: no level of isolation is chosen that would hide it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.core.checks.registry import registry
from django.db import connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel

from recovery import checks
from recovery.connections import session_parameters

pytestmark = pytest.mark.django_db(transaction=True)

SHOW = "SELECT current_setting('transaction_isolation')"


def of_django() -> str:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(SHOW)
        [(level,)] = cursor.fetchall()
    return str(level)


def of_our_own() -> str:
    with psycopg.connect(**session_parameters()) as session:
        [(level,)] = session.execute(SHOW).fetchall()
    return str(level)


def found() -> list[str | None]:
    return [message.id for message in checks.settings_agree(None)]


def found_in_the_database() -> list[str | None]:
    seen = checks.transactions_see_what_is_committed(None, databases=["default"])
    return [message.id for message in seen]


@pytest.fixture
def serializable_database() -> Iterator[None]:
    """Let the database begin transactions at another level than ours."""
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(
            f'ALTER DATABASE "{name}" SET default_transaction_isolation = "serializable"'
        )
    connection.close()
    yield
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
    connection.close()


@contextmanager
def opened_with(**changes: object) -> Iterator[None]:
    """Open Django's sessions with these options in place of what they are opened with."""
    described = connections["default"].settings_dict
    before = described["OPTIONS"]
    described["OPTIONS"] = {**before, **changes}
    connection.close()
    try:
        yield
    finally:
        described["OPTIONS"] = before
        connection.close()


@pytest.mark.usefixtures("serializable_database")
@pytest.mark.parametrize("level", [of_django, of_our_own])
def test_sessions_begin_at_read_committed_whatever_the_database_says(
    level: Callable[[], str],
) -> None:
    assert level() == "read committed"
    assert found_in_the_database() == []
    assert checks.transactions_see_what_is_committed in registry.get_checks()


@pytest.mark.usefixtures("serializable_database")
def test_another_level_of_the_database_is_refused_where_ours_cannot_be_said() -> None:
    """Behind a transaction pooler the level belongs to the role."""
    with opened_with(options=""):
        assert of_django() == "serializable"
        assert found_in_the_database() == ["recovery.E009"]
    assert list(checks.transactions_see_what_is_committed(None, databases=None)) == []


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_another_level_of_djangos_transactions_is_refused(level: IsolationLevel) -> None:
    with opened_with(isolation_level=level):
        assert of_django() == level.name.lower().replace("_", " ")
        assert found() == ["recovery.E008"]
    with opened_with(isolation_level=IsolationLevel.READ_COMMITTED):
        assert found() == []
