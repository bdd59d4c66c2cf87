"""Search on a session that broke while nobody used it."""

from __future__ import annotations

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction

from recovery.connections import session_parameters
from recovery.executor import in_thread
from semantic import ranking
from semantic.models import Manifest
from semantic.search import Scope
from tests.semantic.searching import KnowsMeanings, conversation_of, look

pytestmark = pytest.mark.django_db(transaction=True)

BOAT = "My boat is called Marguerite."


async def test_a_session_that_broke_while_nobody_used_it_is_replaced_without_a_failure() -> (
    None
):
    mine = await conversation_of(BOAT)
    scope = Scope(mine.owner_id)
    vector = KnowsMeanings().meaning("boat")
    manifest = await in_thread(lambda: Manifest.objects.get(state="active"))

    def break_and_search() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            ((pid,),) = cursor.fetchall()
        with psycopg.connect(**session_parameters(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        ranked = ranking.by_both("boat", scope, manifest, vector, limit=1)
        return [found.message_id for found in ranked.found]

    found = await in_thread(break_and_search)
    assert found == [(await look("boat", scope)).hits[0].message_id]


async def test_within_a_transaction_a_broken_session_is_a_failure() -> None:
    """Another session would not see what the transaction has done."""
    mine = await conversation_of(BOAT)

    def break_and_search() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            ((pid,),) = cursor.fetchall()
            with psycopg.connect(**session_parameters(), autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
            ranking.by_words("boat", Scope(mine.owner_id), limit=1)

    with pytest.raises(DatabaseError):
        await in_thread(break_and_search)
