"""No turn is removed over a chunk that came after the transaction that removes it."""

from __future__ import annotations

from typing import Final

import psycopg
import pytest
from django.db import IntegrityError

from recovery.constraints import violated_constraint
from tests import factories as make
from tests.support.rivals import Rival
from tests.support.snapshots import *  # noqa: F403
from tests.support.snapshots import begin
from turns.models import TextChunk, Turn

pytestmark = pytest.mark.django_db(transaction=True)

DELETE: Final = "DELETE FROM turns_turn WHERE id = %s"


@pytest.fixture
def turn() -> Turn:
    return make.TurnFactory.create(running=True)


@pytest.mark.parametrize(
    ("isolation", "rule"),
    [
        ("REPEATABLE READ", "deleted_read_committed"),
        ("SERIALIZABLE", "deleted_read_committed"),
        ("READ COMMITTED", "chunks_are_folded_first"),
    ],
)
def test_a_turn_is_not_removed_over_a_chunk_that_came_before(
    session: psycopg.Connection, turn: Turn, isolation: str, rule: str
) -> None:
    begin(session, isolation)
    make.TextChunkFactory.create(turn=turn)

    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        session.execute(DELETE, [turn.pk])

    assert refused.value.diag.constraint_name == f"turns_turn_{rule}"


def test_a_chunk_that_waits_for_a_removal_does_not_come(
    session: psycopg.Connection, turn: Turn
) -> None:
    begin(session, "READ COMMITTED")
    session.execute(DELETE, [turn.pk])
    chunk = Rival(lambda: TextChunk.objects.create(turn=turn, generation=1, seq=1, text="late"))
    chunk.until_it_waits()
    session.commit()

    refused = chunk.error()
    assert isinstance(refused, IntegrityError)
    assert violated_constraint(refused) == "turns_textchunk_child_fence"
