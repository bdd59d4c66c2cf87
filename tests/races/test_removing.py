"""Removing and correcting against everything else that writes a turn, in both orders.

What is removed stays removed: a writer that waited finds nothing and stops. What a person may
not change while it is answered is refused, never half changed.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from recovery.errors import ErrorCode, Refused, StaleFence
from tests import factories as make
from tests.races.conftest import GateOn
from tests.support.rivals import Rival
from tests.support.settled import assert_settled
from tests.support.turns import everything
from turns import transitions
from turns.models import Conversation, Message, TextChunk, Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)
CHUNK = "INSERT INTO turns_textchunk (turn_id, seq, generation, text) VALUES (%s, 2, 1, '4.')"


def remove(turn: Turn) -> Callable[[], None]:
    owner_id = turn.conversation.owner_id
    return lambda: transitions.delete_conversation(owner_id, turn.conversation_id)


def finish(turn: Turn) -> Callable[[], Turn]:
    fence = make.fence_of(turn)
    return lambda: transitions.finish_turn(fence, Turn.State.COMPLETED, last_seq=1)


def ask(turn: Turn) -> Callable[[], transitions.Admission]:
    owner_id = turn.conversation.owner_id
    return lambda: transitions.admit_turn(owner_id, turn.conversation_id, "More?")


def nothing_is_left() -> None:
    rows = everything()
    rows.pop("RecoveryEvent")
    assert not any(rows.values()), rows


WRITERS: dict[str, Callable[[Turn], Callable[[], object]]] = {
    "finish": finish,
    "cancel": lambda turn: (
        lambda: transitions.request_cancel(turn.conversation.owner_id, turn.pk)
    ),
    "ask": ask,
    "rename": lambda turn: (
        lambda: transitions.rename_conversation(
            turn.conversation.owner_id, turn.conversation_id, "Trees"
        )
    ),
    "correct": lambda turn: (
        lambda: transitions.edit_message(
            turn.conversation.owner_id, turn.user_message_id, "Corrected"
        )
    ),
    "remove again": remove,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_whoever_waited_for_a_removal_finds_nothing(
    turn: Turn, gate_on: GateOn, writer: str
) -> None:
    assert turn.conversation.owner_id
    with gate_on("turn", turn) as held:
        first = Rival(remove(turn)).until_it_waits()
        second = Rival(WRITERS[writer](turn)).until_it_waits()
        assert second.waits_for(first.pid)
        held.open()
    assert first.error() is None
    refused = second.error()
    assert isinstance(refused, StaleFence) or (
        isinstance(refused, Refused) and refused.code == ErrorCode.NOT_FOUND
    ), refused
    nothing_is_left()


def test_recovery_passes_over_what_is_being_removed(orphan: Turn, gate_on: GateOn) -> None:
    with gate_on("turn", orphan) as held:
        removal = Rival(remove(orphan)).until_it_waits()
        assert TurnRecovery().settle_orphans().interrupted == 0
        held.open()
    assert removal.error() is None
    nothing_is_left()
    assert TurnRecovery().settle_orphans().examined == 0


def test_a_removal_waits_for_the_end_of_a_turn_and_takes_it_along(
    turn: Turn, gate_on: GateOn
) -> None:
    with gate_on("message", turn) as held:
        first = Rival(finish(turn)).until_it_waits()
        second = Rival(remove(turn)).until_it_waits()
        assert second.waits_for(first.pid)
        held.open()
    assert first.result().state == "completed"
    assert second.error() is None
    nothing_is_left()


def test_a_removal_takes_the_chunk_along_that_was_being_written(
    turn: Turn, database_url: str
) -> None:
    with psycopg.connect(database_url) as flush:
        flush.execute(
            CHUNK,
            [turn.pk],
        )
        removal = Rival(remove(turn)).until_it_waits()
        assert removal.waits_for(flush.info.backend_pid)
        flush.commit()
    assert removal.error() is None
    nothing_is_left()
    assert not TextChunk.objects.exists()


def test_a_chunk_after_the_removal_is_refused(turn: Turn, database_url: str) -> None:
    remove(turn)()
    with psycopg.connect(database_url) as flush, pytest.raises(psycopg.errors.CheckViolation):
        flush.execute(
            CHUNK,
            [turn.pk],
        )
    nothing_is_left()


@pytest.mark.parametrize("verb", ["correct", "remove"])
def test_a_message_is_changed_before_or_after_its_answer_never_during(
    turn: Turn, gate_on: GateOn, verb: str
) -> None:
    owner_id = turn.conversation.owner_id

    def change() -> object:
        if verb == "correct":
            return transitions.edit_message(owner_id, turn.user_message_id, "Corrected")
        return transitions.delete_message(owner_id, turn.user_message_id)

    with pytest.raises(Refused) as refused:
        change()
    assert refused.value.code == ErrorCode.TURN_IN_PROGRESS

    with gate_on("message", turn) as held:
        ending = Rival(finish(turn)).until_it_waits()
        changing = Rival(change).until_it_waits()
        assert changing.waits_for(ending.pid)
        held.open()
    assert ending.result().state == "completed"
    assert changing.error() is None
    if verb == "correct":
        assert Message.objects.get(pk=turn.user_message_id).text == "Corrected"
        assert_settled(turn, "completed", code="", text="It is ")
    else:
        assert not Message.objects.exists()
        assert Conversation.objects.exists()


@pytest.mark.parametrize("verb", ["correct", "remove"])
def test_a_question_that_waited_for_a_change_is_asked_after_it(
    turn: Turn, gate_on: GateOn, verb: str
) -> None:
    finish(turn)()
    owner_id = turn.conversation.owner_id

    def change() -> object:
        if verb == "correct":
            return transitions.edit_message(owner_id, turn.user_message_id, "Corrected")
        return transitions.delete_message(owner_id, turn.assistant_message_id)

    with gate_on("turn", turn) as held:
        changing = Rival(change).until_it_waits()
        asking = Rival(ask(turn)).until_it_waits()
        assert asking.waits_for(changing.pid)
        held.open()
    assert changing.error() is None
    assert asking.result().created
    texts = list(Message.objects.order_by("pk").values_list("text", flat=True))
    kept = ["Corrected", "It is "] if verb == "correct" else ["A question."]
    assert texts == [*kept, "More?", ""]
