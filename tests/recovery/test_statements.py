"""A transition in one statement: all of it is written, or it is taken back."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import (
    DataError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)
from pytest_django import DjangoAssertNumQueries

from recovery import statements
from recovery.statements import MOVED_SQL, PREPARED_MAX_ITEMS, run, stored
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

RENAME = f"""
    WITH renamed AS (
        UPDATE auth_user SET first_name = %(name)s WHERE id = %(id)s RETURNING id
    )
    SELECT id FROM renamed WHERE {MOVED_SQL.format(moved="%(moved)s")}
"""
TAKE_NAME = "UPDATE auth_user SET username = %(name)s WHERE id = %(id)s RETURNING id"


@pytest.fixture(params=["alone", "within a transaction"])
def place(request: pytest.FixtureRequest) -> AbstractContextManager[object]:
    return nullcontext() if request.param == "alone" else transaction.atomic()


def test_what_moved_is_written(place: AbstractContextManager[object]) -> None:
    user = UserFactory.create()

    with place:
        assert run(RENAME, {"id": user.pk, "name": "Ada", "moved": True}) == [(user.pk,)]

    assert User.objects.get().first_name == "Ada"


def test_what_did_not_move_is_taken_back_alone(place: AbstractContextManager[object]) -> None:
    user = UserFactory.create(first_name="Ada")

    with place:
        run(RENAME, {"id": user.pk, "name": "Grace", "moved": True})
        assert run(RENAME, {"id": user.pk, "name": "Edith", "moved": False}) == []

    assert User.objects.get().first_name == "Grace"


def test_any_other_refusal_is_told(place: AbstractContextManager[object]) -> None:
    first, second = UserFactory.create_batch(2)

    with pytest.raises(IntegrityError), place:
        run(TAKE_NAME, {"id": second.pk, "name": first.username})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 7),
        ("bigint", 1 << 40),
        ("boolean", False),
        ("text", 'a "quoted" \\ text, ä and 100 %'),
        ("text", None),
        ("uuid", UUID(int=1 << 100)),
        ("timestamptz", datetime(2026, 11, 30, 12, 30, 15, 250, tzinfo=UTC)),
    ],
)
def test_a_value_comes_back_as_it_was_sent(
    place: AbstractContextManager[object], kind: str, value: Any
) -> None:
    with place:
        told = run(
            f"SELECT %(value)s::{kind}, %(other)s::int %% 4, %(value)s::{kind}",
            {"value": value, "other": 7},
        )

    assert told == [(value, 3, value)]


def test_a_text_that_the_database_cannot_keep_is_refused_and_not_cut(
    place: AbstractContextManager[object],
) -> None:
    user = UserFactory.create(first_name="Ada")

    with place, pytest.raises(DataError, match="NUL"):
        run(RENAME, {"id": user.pk, "name": "Gra\x00ce", "moved": True})

    assert User.objects.get().first_name == "Ada"


def test_a_statement_that_the_session_forgot_is_prepared_anew() -> None:
    user = UserFactory.create()
    run(RENAME, {"id": user.pk, "name": "Ada", "moved": True})
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")

    assert run(RENAME, {"id": user.pk, "name": "Grace", "moved": True}) == [(user.pk,)]

    assert User.objects.get().first_name == "Grace"


def test_a_statement_is_prepared_anew_for_a_column_of_another_type() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE parcel AS SELECT 1 AS weight")
    assert run("SELECT weight FROM parcel", {}) == [(1,)]
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE parcel ALTER weight TYPE text")

    assert run("SELECT weight FROM parcel", {}) == [("1",)]


@pytest.fixture
def weighed() -> Iterator[str]:
    """Return what weighs a parcel, whose weight a function looks at."""
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE TABLE parcel AS SELECT 1 AS weight;
            CREATE FUNCTION parcel_abides() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.weight < OLD.weight THEN RAISE 'lighter'; END IF; RETURN NULL;
            END $$;
            CREATE TRIGGER abides AFTER UPDATE ON parcel
                FOR EACH ROW EXECUTE FUNCTION parcel_abides()""")
    yield "UPDATE parcel SET weight = %(weight)s RETURNING weight::int"
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE parcel; DROP FUNCTION parcel_abides")


def change_weight(kind: str) -> None:
    """Let a migration give the column another type, by a session of its own."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute(f"ALTER TABLE parcel ALTER weight TYPE {kind}")
    other.close()


@pytest.mark.parametrize("prepared", [True, False])
def test_a_session_outlives_another_type_of_a_column_that_a_function_looks_at(
    weighed: str, *, prepared: bool
) -> None:
    for weight, kind in enumerate(("bigint", "integer", "numeric"), 2):
        assert run(weighed, {"weight": weight}, prepared=prepared) == [(weight,)]
        change_weight(kind)
        assert run(weighed, {"weight": weight}, prepared=prepared) == [(weight,)]


def test_within_a_transaction_it_is_told_and_the_session_stays(weighed: str) -> None:
    run(weighed, {"weight": 2})
    change_weight("bigint")

    session = connection.connection
    with transaction.atomic():
        User.objects.update(first_name="Ada")
        with pytest.raises(ProgrammingError):
            run(weighed, {"weight": 3})
    assert connection.connection is session


def test_a_statement_that_mixes_types_itself_is_refused(weighed: str) -> None:
    with pytest.raises(ProgrammingError, match="type"):
        run("UPDATE parcel SET weight = %(weight)s::bytea RETURNING 1", {"weight": b""})


def test_a_plan_made_while_a_table_was_nearly_empty_does_not_read_all_of_it() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE parcel AS SELECT 1 AS id")
        cursor.execute("ALTER TABLE parcel ADD PRIMARY KEY (id)")
        cursor.execute("ANALYZE parcel")
    for _ in range(7):  # the sixth is planned for whatever its parameters are
        run("SELECT id FROM parcel WHERE id = %(id)s", {"id": 1})

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%%FROM parcel%%'"
        )
        [(name,)] = cursor.fetchall()
        cursor.execute(f"EXPLAIN EXECUTE {name} (1)")
        plan = str(cursor.fetchall())

    assert "parcel_pkey" in plan


def test_what_has_to_read_a_whole_table_all_the_same_is_not_compiled() -> None:
    """Before PostgreSQL 18 such a plan seemed so dear that this took half a second."""
    run("SELECT %(number)s::int", {"number": 1})

    with connection.cursor() as cursor:
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)


def test_a_session_that_is_met_again_knows_its_statements_by_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("SELECT %(number)s::int", {"number": 1}) == [(1,)]
    monkeypatch.delattr(statements._kept, "session")  # as after another connection's turn

    assert run("SELECT %(number)s::int", {"number": 2}) == [(2,)]


def prepared() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE NOT from_sql")
        return {name for (name,) in cursor.fetchall()}


def test_no_two_sessions_use_the_same_names() -> None:
    """A pooler of which nobody told us gives one session of the server to several processes."""
    seen: list[str] = []
    for _ in range(2):
        connection.close()
        importlib.reload(statements)  # as in a process that starts
        statements.run("SELECT %(number)s::int", {"number": 1})
        seen += prepared()

    assert len(set(seen)) == 2


def test_a_session_keeps_so_many_statements_and_prepares_the_others_anew() -> None:
    for extra in range(PREPARED_MAX_ITEMS + 10):
        assert run(f"SELECT %(number)s::int + {extra}", {"number": 1}) == [(1 + extra,)]
        assert run("SELECT %(often)s::int", {"often": 7}) == [(7,)]

    assert len(prepared()) == PREPARED_MAX_ITEMS
    kept = prepared()
    assert run("SELECT %(often)s::int", {"often": 8}) == [(8,)]
    assert prepared() == kept  # what is used often stays
    assert run("SELECT %(number)s::int + 0", {"number": 2}) == [(2,)]
    assert len(prepared()) == PREPARED_MAX_ITEMS


def test_a_lost_server_is_told_as_such_and_the_next_session_goes_on() -> None:
    user = UserFactory.create()
    run(RENAME, {"id": user.pk, "name": "Ada", "moved": True})
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid]
        )
    other.close()

    for _ in range(2):  # the loss itself, and the session that is known to be lost
        with pytest.raises(OperationalError):
            run(RENAME, {"id": user.pk, "name": "Grace", "moved": True})
    connection.close_if_unusable_or_obsolete()

    assert run(RENAME, {"id": user.pk, "name": "Edith", "moved": True}) == [(user.pk,)]
    assert User.objects.get().first_name == "Edith"


def test_a_stored_row_reads_what_is_not_known_of_it() -> None:
    user = UserFactory.create(first_name="Ada", last_name="King")

    row = stored(User, {"id": user.pk, "first_name": "Augusta"})

    assert (row.first_name, row.last_name) == ("Augusta", "King")
    assert row == user
    row.save(update_fields=["first_name"])
    assert User.objects.get().first_name == "Augusta"


def test_a_row_read_before_knows_what_it_was_then_and_what_is_new(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    user = UserFactory.create(first_name="Ada", last_name="King")

    with django_assert_num_queries(0):
        row = stored(User, {"id": user.pk, "first_name": "Augusta"}, earlier=user)
        assert (row.first_name, row.last_name) == ("Augusta", "King")

    assert user.first_name == "Ada"
