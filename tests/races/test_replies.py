"""A success is told after its commit, never before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from tests import factories as make
from tests.support.rivals import Rival, gate
from turns import transitions
from turns.models import Turn

pytestmark = pytest.mark.django_db(transaction=True)

AT_COMMIT = 4711


@pytest.fixture
def slow_commit() -> Iterator[None]:
    """Let the commit of an admitted turn wait for an advisory lock that a gate can hold."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"PERFORM pg_advisory_xact_lock({AT_COMMIT}); RETURN NULL; END $$"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER wait_at_commit AFTER INSERT ON turns_turn "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TRIGGER wait_at_commit ON turns_turn")
        cursor.execute("DROP FUNCTION wait_at_commit")


@pytest.mark.usefixtures("slow_commit")
def test_three_questions_are_each_answered_for_after_their_commit(database_url: str) -> None:
    """failure H26"""
    conversation = make.ConversationFactory.create()
    owner = conversation.owner_id
    told: list[int] = []
    for number in range(3):
        with gate(database_url, "SELECT pg_advisory_xact_lock(%s)", AT_COMMIT) as held:
            asking = Rival(
                lambda: transitions.admit_turn(owner, conversation.pk, "Why?")
            ).until_it_waits()
            assert asking.waits_for(held.pid)
            # all is written and nothing is committed: nobody has been told of it
            assert Turn.objects.count() == number
            held.open()
        told.append(asking.result().turn.pk)
        assert Turn.objects.filter(pk=told[-1]).exists()
        transitions.request_cancel(owner, told[-1])

    assert list(Turn.objects.order_by("pk").values_list("pk", flat=True)) == told
