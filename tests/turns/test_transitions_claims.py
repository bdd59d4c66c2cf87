"""Claiming and cancelling: who works on a turn, and that it stops when asked."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from recovery.errors import Refused
from recovery.fences import Fence, claimed_mark
from tests import factories as make
from tests.support.settled import assert_settled, every_row
from turns import transitions
from turns.models import Conversation, ToolStep, Turn

pytestmark = pytest.mark.django_db


def claim(turn: Turn, **runtime: bool) -> Fence | None:
    return transitions.claim_turn(turn.pk, owner=make.RuntimeFactory.create(**runtime).pk)


def revision_of(turn: Turn) -> int:
    return Conversation.objects.get(pk=turn.conversation_id).revision


class TestClaim:
    def test_a_claim_takes_ownership_and_starts_the_clock(self) -> None:
        turn = make.TurnFactory.create()
        fence = claim(turn)

        turn.refresh_from_db()
        assert fence == Fence(turn.pk, 1, turn.claim_token)
        assert (turn.state, turn.attempts, turn.write_mark) == ("running", 1, claimed_mark(1))
        assert turn.claimed_at is not None
        assert turn.deadline_at == turn.claimed_at + timedelta(seconds=600)
        assert revision_of(turn) == 1

    def test_the_clock_is_the_one_stored_at_admission(self) -> None:
        turn = make.TurnFactory.create(limits={"wall_clock_seconds": 7})
        claim(turn)

        turn.refresh_from_db()
        assert turn.claimed_at is not None
        assert turn.deadline_at == turn.claimed_at + timedelta(seconds=7)

    @pytest.mark.parametrize("state", ["running", "completed", "cancelled", "interrupted"])
    def test_a_repeated_hint_claims_nothing(self, state: str) -> None:
        turn = make.TurnFactory.create(**{state: True})
        before = every_row()

        assert claim(turn) is None
        assert every_row() == before

    def test_an_unknown_turn_is_not_claimed(self) -> None:
        assert transitions.claim_turn(999_999, owner=uuid4()) is None

    @pytest.mark.parametrize("end", ["stopped", "lost", "expired"])
    def test_a_fenced_runtime_claims_nothing(self, end: str) -> None:
        turn = make.TurnFactory.create()

        assert claim(turn, **{end: True}) is None
        turn.refresh_from_db()
        assert (turn.state, turn.generation) == ("queued", 0)
        assert revision_of(turn) == 0

    def test_a_runtime_that_never_registered_claims_nothing(self) -> None:
        turn = make.TurnFactory.create()

        assert transitions.claim_turn(turn.pk, owner=uuid4()) is None

    def test_a_claim_is_found_again_by_its_token(self) -> None:
        """After a commit of unknown outcome; a claim that has ended is none."""
        turn, token = make.TurnFactory.create(), uuid4()
        assert transitions.claim_under(token) is None
        owner = make.RuntimeFactory.create().pk
        fence = transitions.claim_turn(turn.pk, owner=owner, token=token)

        assert fence is not None
        assert transitions.claim_under(token) == fence
        transitions.finish_turn(fence, Turn.State.FAILED)
        assert transitions.claim_under(token) is None


class TestCancel:
    def test_a_queued_turn_ends_at_once(self) -> None:
        """failure H03"""
        turn = make.TurnFactory.create()
        answered, accepted = transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert accepted
        assert answered.state == "cancelled"
        assert_settled(turn, "cancelled", code="cancelled")
        assert claim(turn) is None

    def test_a_turn_whose_owner_is_dead_ends_at_once_with_all_it_consists_of(self) -> None:
        """failure H03: no registry and no worker is needed"""
        turn = make.TurnFactory.create(orphaned=True, asked=True)
        make.TextChunkFactory.create(turn=turn, text="It was ")
        tool = make.ToolStepFactory.create(
            turn=turn, provider_step__sequence=2, running=True, external=True
        )
        _, accepted = transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert accepted
        assert_settled(turn, "cancelled", code="cancelled", text="It was ")
        tool.refresh_from_db()
        assert tool.state == "cancelled"

    def test_a_turn_nobody_owns_ends_at_once(self) -> None:
        turn = make.TurnFactory.create(running=True, owner=uuid4())
        transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert_settled(turn, "cancelled", code="cancelled")

    def test_a_turn_at_work_is_asked_to_stop(self) -> None:
        turn = make.TurnFactory.create(running=True)
        answered, accepted = transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert accepted
        assert (answered.state, answered.error_code) == ("running", "")
        assert answered.cancel_requested_at is not None
        assert revision_of(turn) == 1

    def test_asking_twice_keeps_the_first_time(self) -> None:
        turn = make.TurnFactory.create(running=True)
        first, _ = transitions.request_cancel(turn.conversation.owner_id, turn.pk)
        second, accepted = transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert accepted
        assert second.cancel_requested_at == first.cancel_requested_at

    @pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "interrupted"])
    def test_asked_after_the_end_it_answers_with_the_state_it_found(self, state: str) -> None:
        turn = make.TurnFactory.create(**{state: True})
        before = every_row()

        answered, accepted = transitions.request_cancel(turn.conversation.owner_id, turn.pk)

        assert (answered.state, accepted) == (state, False)
        assert every_row() == before

    def test_a_foreign_turn_answers_like_an_unknown_one(self) -> None:
        turn = make.TurnFactory.create(running=True)
        stranger = make.UserFactory.create().pk

        for turn_id in (turn.pk, 999_999_999):
            with pytest.raises(Refused) as refused:
                transitions.request_cancel(stranger, turn_id)
            assert refused.value.code == "not_found"
        turn.refresh_from_db()
        assert turn.cancel_requested_at is None

    def test_after_a_cancel_nothing_starts(self) -> None:
        """failure H29: no tool step starts after the cancel commit"""
        turn = make.TurnFactory.create(running=True, asked=True)
        tool = make.ToolStepFactory.create(turn=turn, provider_step__sequence=2)
        transitions.request_cancel(turn.conversation.owner_id, turn.pk)
        fence = make.fence_of(turn)

        with pytest.raises(transitions.CancelRequested):
            transitions.start_tool_step(fence, tool.pk)
        with pytest.raises(transitions.CancelRequested):
            transitions.start_provider_step(fence, make.request_facts())
        with pytest.raises(transitions.CancelRequested):
            transitions.capture_receipt(fence, make.request_facts())
        tool.refresh_from_db()
        assert tool.state == ToolStep.State.REQUESTED

    def test_after_a_cancel_an_outcome_is_still_recorded(self) -> None:
        turn = make.TurnFactory.create(cancel_requested=True, asked=True)
        tool = make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, running=True)

        done = transitions.finish_tool_step(
            make.fence_of(turn), tool.pk, ToolStep.State.SUCCEEDED, result="found"
        )

        assert (done.state, done.result) == ("succeeded", "found")
