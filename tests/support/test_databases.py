"""What one test commits, the next one does not see."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.db import connection

from recovery.models import RecoveryEvent
from tests import factories as make
from tests.support import databases
from tests.support.rivals import Rival

pytestmark = pytest.mark.django_db(transaction=True)


def rows() -> int:
    """Count what lies in any table of any model, but for what migrations say of models."""
    return sum(
        model._default_manager.count()
        for model in apps.get_models()
        if model._meta.managed and model._meta.db_table not in databases.KEPT
    )


def file_of(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_relation_filenode(%s::regclass)", [table])
        return int((cursor.fetchone() or (0,))[0])


def test_rows_go_whatever_refuses_their_removal() -> None:
    RecoveryEvent.objects.create(
        kind="turns", row_id=1, cause="runtime_lost", action="adopted", generation=1
    )
    make.TextChunkFactory.create(turn=make.TurnFactory.create(running=True), text="text")
    make.ToolStepFactory.create(running=True)
    make.WorkJobFactory.create(running=True)
    before = file_of("turns_turn"), Permission.objects.count()
    assert rows() > 0
    databases.empty()
    assert rows() == 0
    assert (file_of("turns_turn"), Permission.objects.count()) == before


def test_a_table_that_has_grown_is_made_small_again() -> None:
    conversation = make.ConversationFactory.create()
    for _ in range(40):
        text = secrets.token_hex(900)  # 40 texts that do not compress to one page
        make.MessageFactory.create(conversation=conversation, answered=True, text=text)
    before = file_of("turns_message")
    databases.empty()
    assert rows() == 0
    assert file_of("turns_message") != before


def test_what_is_still_to_be_committed_when_a_test_ends_goes_too(database_url: str) -> None:
    with psycopg.connect(database_url) as left_over:
        left_over.execute("INSERT INTO recovery_pulse VALUES (1, now(), now())")
        emptying = Rival(databases.empty).until_it_waits()
        left_over.commit()
        emptying.result()
    assert rows() == 0
