"""Each pair of transitions of one turn, in both orders, on real sessions: one wins, both tell.

The first is held up inside its transaction, with the conversation and the turn locked. The
second must wait for it, and then finds what the first has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from django.db.models.functions import Now

from recovery.errors import ErrorCode, IllegalTransition, Refused, StaleFence
from recovery.reports import RecoveryReport
from tests import factories as make
from tests.races.conftest import GateOn
from tests.support.rivals import Rival, gate
from tests.support.settled import assert_settled, every_row
from turns import transitions
from turns.models import Turn
from turns.recovery import TurnRecovery

pytestmark = pytest.mark.django_db(transaction=True)


def recover() -> RecoveryReport:
    return TurnRecovery().settle_orphans()


def finish(turn: Turn) -> Callable[[], Turn]:
    fence = make.fence_of(turn)
    return lambda: transitions.finish_turn(
        fence, Turn.State.COMPLETED, last_seq=1, text="It is 4."
    )


def cancel(turn: Turn) -> Callable[[], tuple[Turn, bool]]:
    owner = turn.conversation.owner_id
    return lambda: transitions.request_cancel(owner, turn.pk)


class TestCancelAndFinish:
    def test_cancel_first_the_finish_becomes_cancelled(
        self, turn: Turn, gate_on: GateOn
    ) -> None:
        """failure H27"""
        with gate_on("turn", turn) as held:
            first = Rival(cancel(turn)).until_it_waits()
            second = Rival(finish(turn)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result()[1] is True
        assert second.result().state == "cancelled"
        assert_settled(turn, "cancelled", code="cancelled", text="It is ")

    def test_finish_first_the_cancel_answers_with_the_end_it_found(
        self, turn: Turn, gate_on: GateOn
    ) -> None:
        with gate_on("message", turn) as held:
            first = Rival(finish(turn)).until_it_waits()
            second = Rival(cancel(turn)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().state == "completed"
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("completed", False)
        assert_settled(turn, "completed", code="", text="It is 4.")


class TestCancelAndClaim:
    @pytest.fixture
    def turn(self) -> Turn:
        return make.TurnFactory.create()

    def claim(self, turn: Turn) -> Callable[[], object]:
        owner = make.RuntimeFactory.create().pk
        return lambda: transitions.claim_turn(turn.pk, owner=owner)

    def test_cancel_first_the_claim_gets_nothing(self, turn: Turn, gate_on: GateOn) -> None:
        """failure H21"""
        with gate_on("turn", turn) as held:
            first = Rival(cancel(turn)).until_it_waits()
            second = Rival(self.claim(turn)).until_it_waits()
            held.open()

        assert first.result()[0].state == "cancelled"
        assert second.result() is None
        assert_settled(turn, "cancelled", code="cancelled")

    def test_claim_first_the_cancel_is_recorded_and_stops_the_worker(
        self, turn: Turn, gate_on: GateOn
    ) -> None:
        """failure H28"""
        with gate_on("turn", turn) as held:
            first = Rival(self.claim(turn)).until_it_waits()
            second = Rival(cancel(turn)).until_it_waits()
            held.open()

        fence = first.result()
        assert fence is not None
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("running", True)
        turn.refresh_from_db()
        with pytest.raises(transitions.CancelRequested):
            transitions.capture_receipt(make.fence_of(turn), make.request_facts())


class TestCancelAndToolStart:
    @pytest.fixture
    def turn(self) -> Turn:
        turn = make.TurnFactory.create(running=True, asked=True)
        make.ToolStepFactory.create(turn=turn, provider_step__sequence=2)
        return turn

    def start(self, turn: Turn) -> Callable[[], object]:
        fence, tool = make.fence_of(turn), turn.tool_steps.get()
        return lambda: transitions.start_tool_step(fence, tool.pk)

    def test_cancel_first_the_tool_does_not_start(self, turn: Turn, gate_on: GateOn) -> None:
        """failure H29"""
        with gate_on("turn", turn) as held:
            first = Rival(cancel(turn)).until_it_waits()
            second = Rival(self.start(turn)).until_it_waits()
            held.open()

        assert first.result()[1]
        assert isinstance(second.error(), transitions.CancelRequested)
        assert turn.tool_steps.get().state == "requested"

    def test_start_first_the_cancel_finds_the_tool_running(
        self, turn: Turn, gate_on: GateOn
    ) -> None:
        with gate_on("toolstep", turn) as held:
            first = Rival(self.start(turn)).until_it_waits()
            second = Rival(cancel(turn)).until_it_waits()
            held.open()

        first.result()
        assert second.result()[1]
        assert turn.tool_steps.get().state == "running"


class TestRecoveryAndFinish:
    def test_recovery_first_the_finish_is_stale(self, orphan: Turn, gate_on: GateOn) -> None:
        with gate_on("message", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(finish(orphan)).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().interrupted == 1
        assert isinstance(second.error(), StaleFence)
        assert_settled(orphan, "interrupted", code="runtime_lost", text="It is ")

    def test_finish_first_recovery_leaves_the_row_alone(
        self, orphan: Turn, gate_on: GateOn
    ) -> None:
        """It waits for nobody: a row somebody writes is skipped, and no orphan afterwards."""
        with gate_on("message", orphan) as held:
            first = Rival(finish(orphan)).until_it_waits()
            assert Rival(recover).result().skipped == 1
            held.open()

        assert first.result().state == "completed"
        assert recover().examined == 0
        assert_settled(orphan, "completed", code="", text="It is 4.")


class TestRecoveryAndCancel:
    def test_recovery_first_the_cancel_answers_interrupted(
        self, orphan: Turn, gate_on: GateOn
    ) -> None:
        with gate_on("message", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(cancel(orphan)).until_it_waits()
            held.open()

        assert first.result().interrupted == 1
        answered, accepted = second.result()
        assert (answered.state, accepted) == ("interrupted", False)

    def test_a_row_cancelled_between_look_and_lock_stays_cancelled(self, orphan: Turn) -> None:
        """failure H30"""
        recovery, report = TurnRecovery(), RecoveryReport("turns")
        selected = recovery._owned.look(limit=10)
        assert [found.pk for found in selected] == [orphan.pk]
        Rival(cancel(orphan)).result()

        recovery._settle_batch(selected, report)

        assert (report.interrupted, report.failed) == (0, 0)
        assert_settled(orphan, "cancelled", code="cancelled", text="It is ")
        orphan.refresh_from_db()
        assert orphan.generation == 1


class TestTwoOfAKind:
    def test_two_claims_give_one_fence(self, gate_on: GateOn) -> None:
        turn = make.TurnFactory.create()
        owners = [make.RuntimeFactory.create().pk for _ in range(2)]
        with gate_on("turn", turn) as held:
            first = Rival(lambda: transitions.claim_turn(turn.pk, owner=owners[0]))
            first.until_it_waits()
            second = Rival(lambda: transitions.claim_turn(turn.pk, owner=owners[1]))
            second.until_it_waits()
            held.open()

        assert first.result() is not None
        assert second.result() is None
        turn.refresh_from_db()
        assert (turn.owner, turn.generation) == (owners[0], 1)

    def test_two_recoveries_end_a_row_once(self, orphan: Turn, gate_on: GateOn) -> None:
        with gate_on("message", orphan) as held:
            first = Rival(recover).until_it_waits()
            second = Rival(recover).result()
            held.open()

        assert (first.result().interrupted, second.interrupted) == (1, 0)
        before = every_row()
        assert recover().examined == 0
        assert every_row() == before

    def test_two_finishes_end_a_turn_once(self, turn: Turn, gate_on: GateOn) -> None:
        with gate_on("message", turn) as held:
            first = Rival(finish(turn)).until_it_waits()
            second = Rival(finish(turn)).until_it_waits()
            held.open()

        assert first.result().state == "completed"
        assert isinstance(second.error(), StaleFence)

    @pytest.mark.parametrize("request_number", ["first", "next"])
    def test_two_requests_begun_at_once_are_one(
        self, request_number: str, gate_on: GateOn
    ) -> None:
        turn = make.TurnFactory.create(running=True, asked=request_number == "next")
        begin = transitions.capture_receipt
        if request_number == "next":
            turn.provider_steps.update(state="completed", finished_at=Now())
            begin = transitions.start_provider_step
        start = partial(begin, make.fence_of(turn), make.request_facts())
        with gate_on("turn", turn) as held:
            first = Rival(start).until_it_waits()
            second = Rival(start).until_it_waits()
            assert second.waits_for(first.pid)
            held.open()

        assert first.result().state == "started"
        assert isinstance(second.error(), IllegalTransition)
        assert turn.provider_steps.get(state="started") == first.result()


class TestAdmissions:
    @pytest.fixture
    def ended(self) -> Turn:
        return make.TurnFactory.create(completed=True)

    def race(
        self, ended: Turn, database_url: str, *keys: str | None
    ) -> list[Rival[transitions.Admission]]:
        """Two people's clicks at once, the first held up before its first row."""
        owner, conversation = ended.conversation.owner_id, ended.conversation_id
        sql = "SELECT FROM turns_conversation WHERE id = %s FOR UPDATE"
        with gate(database_url, sql, conversation) as held:
            rivals = [
                Rival(
                    partial(transitions.admit_turn, owner, conversation, "Why?", client_key=key)
                ).until_it_waits()
                for key in keys
            ]
            held.open()
        return rivals

    def test_two_questions_at_once_make_one_turn(self, ended: Turn, database_url: str) -> None:
        first, second = self.race(ended, database_url, None, None)

        assert first.result().created
        error = second.error()
        assert isinstance(error, Refused)
        assert error.code == ErrorCode.TURN_IN_PROGRESS
        assert Turn.objects.open().count() == 1

    def test_a_double_click_is_one_turn(self, ended: Turn, database_url: str) -> None:
        first, second = self.race(ended, database_url, "click", "click")

        assert (first.result().created, second.result().created) == (True, False)
        assert first.result().turn.pk == second.result().turn.pk

    def test_two_conversations_made_under_one_key_are_one(self, database_url: str) -> None:
        person = make.UserFactory.create().pk
        sql = "SELECT FROM auth_user WHERE id = %s FOR UPDATE"
        with gate(database_url, sql, person) as held:
            rivals = [
                Rival(lambda: transitions.create_conversation(person, client_key="k"))
                for _ in range(2)
            ]
            for rival in rivals:
                rival.until_it_waits()
            held.open()

        made = [rival.result() for rival in rivals]
        assert sorted(created for _, created in made) == [False, True]
        assert made[0][0].pk == made[1][0].pk


def test_admission_waits_for_the_end_it_follows(turn: Turn, gate_on: GateOn) -> None:
    with gate_on("message", turn) as held:
        first = Rival(finish(turn)).until_it_waits()
        owner = turn.conversation.owner_id
        second = Rival(lambda: transitions.admit_turn(owner, turn.conversation_id, "And?"))
        second.until_it_waits()
        held.open()

    assert first.result().state == "completed"
    assert second.result().created


def test_admission_waits_for_recovery(orphan: Turn, gate_on: GateOn) -> None:
    with gate_on("message", orphan) as held:
        first = Rival(recover).until_it_waits()
        owner = orphan.conversation.owner_id
        second = Rival(lambda: transitions.admit_turn(owner, orphan.conversation_id, "And?"))
        second.until_it_waits()
        held.open()

    assert first.result().interrupted == 1
    assert second.result().created


def test_a_runtime_that_stops_leaves_what_was_just_finished(
    turn: Turn, gate_on: GateOn
) -> None:
    with gate_on("message", turn) as held:
        first = Rival(finish(turn)).until_it_waits()
        fence = make.fence_of(turn)
        second = Rival(
            lambda: transitions.interrupt_own_turns([fence], ErrorCode.RUNTIME_STOPPED)
        ).until_it_waits()
        held.open()

    assert first.result().state == "completed"
    assert second.result() == []


def test_a_stopping_runtime_and_a_start_do_not_both_win(turn: Turn, gate_on: GateOn) -> None:
    fence = make.fence_of(turn)
    tool = make.ToolStepFactory.create(turn=turn, provider_step__sequence=2)
    with gate_on("toolstep", turn) as held:
        first = Rival(
            lambda: transitions.interrupt_own_turns([fence], ErrorCode.RUNTIME_STOPPED)
        ).until_it_waits()
        second = Rival(lambda: transitions.start_tool_step(fence, tool.pk)).until_it_waits()
        held.open()

    assert first.result() == [turn.pk]
    assert isinstance(second.error(), StaleFence)
    assert not isinstance(second.error(), IllegalTransition)
    assert_settled(turn, "interrupted", code="runtime_stopped", text="It is ")
