"""A transition in one statement: all of it is written, or it is taken back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from pytest_django import DjangoAssertNumQueries

from recovery.statements import MOVED_SQL, run, stored
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
