"""Turns to race for, and gates on their rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests import factories as make
from tests.support.rivals import Gate, gate
from turns.models import Turn

GateOn = Callable[[str, Turn], AbstractContextManager[Gate]]

ROWS = {
    "turn": "SELECT FROM turns_turn WHERE id = %s FOR UPDATE",
    "message": "SELECT FROM turns_message m JOIN turns_turn t ON t.assistant_message_id = m.id "
    "WHERE t.id = %s FOR UPDATE OF m",
    "receipt": "SELECT FROM turns_receipt WHERE turn_id = %s FOR UPDATE",
    "toolstep": "SELECT FROM turns_toolstep WHERE turn_id = %s FOR UPDATE",
}


@pytest.fixture
def gate_on(database_url: str) -> GateOn:
    """Return a function that holds one row of a turn.

    Held up at `turn`, a transition has its conversation; at `message`, `receipt` or `toolstep`,
    its turn as well.
    """

    def hold(row: str, turn: Turn) -> AbstractContextManager[Gate]:
        return gate(database_url, ROWS[row], turn.pk)

    return hold


@pytest.fixture
def turn() -> Turn:
    """A turn at work, with its runtime alive."""
    return _turn_at_work(running=True)


@pytest.fixture
def orphan() -> Turn:
    """A turn at work, with its runtime buried."""
    return _turn_at_work(orphaned=True)


def _turn_at_work(**traits: bool) -> Turn:
    turn = make.TurnFactory.create(asked=True, **traits)
    make.TextChunkFactory.create(turn=turn, text="It is ")
    return turn
