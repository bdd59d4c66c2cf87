"""A pause against admission and claim, in both orders, on real sessions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recovery.errors import Refused
from recovery.switches import LOCK_CLASS, State, set_release
from tests import factories as make
from tests.races.conftest import GateOn
from tests.support.rivals import Rival, gate
from turns import transitions
from turns.models import Turn
from turns.transitions import Admission

pytestmark = pytest.mark.django_db(transaction=True)

SWITCH_ROW = "SELECT FROM recovery_releaseswitch WHERE kind = 'turns' FOR UPDATE"
SHARED = "SELECT pg_advisory_xact_lock_shared(%s, hashtext('turns'))"


def ask(turn: Turn) -> Callable[[], Admission]:
    """Return a question in the conversation of an ended turn."""
    owner, conversation = turn.conversation.owner_id, turn.conversation_id
    return lambda: transitions.admit_turn(owner, conversation, "And then?")


def pause(state: State) -> Callable[[], State]:
    return lambda: set_release("turns", state)


@pytest.fixture
def ended() -> Turn:
    return make.TurnFactory.create(completed=True)


def test_admission_first_the_pause_returns_after_its_commit(
    ended: Turn, database_url: str
) -> None:
    # An admission that holds the switch open and has not committed is stood in for by its lock:
    # what it does afterwards is not held up by anything a test could hold.
    with gate(database_url, SHARED, LOCK_CLASS) as admission:
        paused = Rival(pause(State.DRAINING)).until_it_waits()
        assert paused.waits_for(admission.pid)
        late = Rival(ask(ended)).until_it_waits()
        assert late.waits_for(paused.pid)
        admission.open()

    assert paused.result() == State.OPEN
    with pytest.raises(Refused, match="paused"):
        late.result()


def test_an_admission_under_way_when_the_pause_comes_is_kept(
    ended: Turn, database_url: str
) -> None:
    # It has read the switch and is held up at its first message.
    with gate(database_url, "LOCK TABLE turns_message IN SHARE MODE") as held:
        admitted = Rival(ask(ended)).until_it_waits()
        assert admitted.waits_for(held.pid)
        paused = Rival(pause(State.DRAINING)).until_it_waits()
        assert paused.waits_for(admitted.pid)
        held.open()

    assert admitted.result().created
    assert paused.result() == State.OPEN


def test_pause_first_the_admission_that_waited_is_refused(
    ended: Turn, database_url: str
) -> None:
    make_switch_row()
    with gate(database_url, SWITCH_ROW) as held:
        paused = Rival(pause(State.DRAINING)).until_it_waits()
        refused = Rival(ask(ended)).until_it_waits()
        assert refused.waits_for(paused.pid)
        held.open()

    assert paused.result() == State.OPEN
    with pytest.raises(Refused, match="paused"):
        refused.result()
    assert Turn.objects.count() == 1


def test_a_claim_that_waited_while_turns_were_disabled_gets_nothing(gate_on: GateOn) -> None:
    turn, owner = make.TurnFactory.create(), make.RuntimeFactory.create().pk
    with gate_on("turn", turn) as held:
        claim = Rival(lambda: transitions.claim_turn(turn.pk, owner=owner)).until_it_waits()
        set_release("turns", State.DISABLED)
        held.open()

    assert claim.result() is None
    assert Turn.objects.get(pk=turn.pk).state == "queued"


def test_a_claim_first_runs_on_though_turns_are_disabled_then() -> None:
    turn, owner = make.TurnFactory.create(), make.RuntimeFactory.create().pk
    fence = transitions.claim_turn(turn.pk, owner=owner)
    set_release("turns", State.DISABLED)
    assert fence is not None
    transitions.capture_receipt(fence, make.request_facts())


def make_switch_row() -> None:
    """Leave a row behind, as every installation has that was paused before."""
    set_release("turns", State.DRAINING)
    set_release("turns", State.OPEN)
