"""The end of a turn: everything it consists of ends with it, truthfully, and stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.errors import ErrorCode, IllegalTransition, StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.support.settled import assert_settled, every_row
from turns import bounds, transitions
from turns.digests import digest
from turns.models import Conversation, ProviderStep, Receipt, ToolStep, Turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def turn() -> Turn:
    return make.TurnFactory.create(running=True, asked=True)


@pytest.fixture
def fence(turn: Turn) -> Fence:
    return make.fence_of(turn)


def say(turn: Turn, *texts: str) -> None:
    for text in texts:
        make.TextChunkFactory.create(turn=turn, text=text)


def complete(fence: Fence, **facts: Any) -> Turn:
    return transitions.finish_turn(fence, Turn.State.COMPLETED, **facts)


class TestCompletion:
    def test_completing_closes_everything_with_what_was_reported(
        self, turn: Turn, fence: Fence
    ) -> None:
        """behaviour E2"""
        say(turn, "It is ", "4.")
        done = complete(fence, last_seq=2, response_id="r1", usage={"output_tokens": 2})

        assert_settled(turn, "completed", code="", text="It is 4.")
        assert done.state == "completed"
        step = ProviderStep.objects.get()
        assert (step.response_id, step.usage, step.last_seq) == ("r1", {"output_tokens": 2}, 2)
        assert Receipt.objects.get().usage == {"output_tokens": 2}
        assert Conversation.objects.get().revision == 1

    def test_usage_that_was_not_reported_stays_unknown(self, turn: Turn, fence: Fence) -> None:
        complete(fence, text="4.")

        assert (ProviderStep.objects.get().usage, Receipt.objects.get().usage) == (None, None)
        assert_settled(turn, "completed", code="", text="4.")

    @pytest.mark.parametrize("state", ["requested", "running"])
    def test_a_turn_does_not_complete_over_an_open_call(
        self, turn: Turn, fence: Fence, state: str
    ) -> None:
        """behaviour D5"""
        trait = {"running": True} if state == "running" else {}
        make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, **trait)
        before = every_row()

        with pytest.raises(IllegalTransition):
            complete(fence)
        assert every_row() == before

    def test_a_turn_that_asked_nothing_does_not_complete(self) -> None:
        unasked = make.TurnFactory.create(running=True)

        with pytest.raises(IllegalTransition):
            complete(make.fence_of(unasked))

    def test_a_turn_whose_text_is_not_all_stored_does_not_complete(
        self, turn: Turn, fence: Fence
    ) -> None:
        say(turn, "It is ")

        with pytest.raises(IllegalTransition):
            complete(fence, last_seq=2)

    def test_what_the_response_said_last_replaces_what_was_streamed_of_it_alone(
        self, turn: Turn, fence: Fence
    ) -> None:
        say(turn, "Let me see. ")
        transitions.complete_provider_step(
            fence, ProviderStep.objects.get().pk, response_id="r1", usage=None, last_seq=1,
            calls=[],
        )  # fmt: skip
        transitions.start_provider_step(fence, make.request_facts())
        say(turn, "It is 5.")
        complete(fence, last_seq=2, text="It is 4.", response_id="r2")

        assert_settled(turn, "completed", code="", text="Let me see. It is 4.")

    def test_a_last_response_already_stored_is_replaced_too(
        self, turn: Turn, fence: Fence
    ) -> None:
        say(turn, "It is 5.")
        transitions.complete_provider_step(
            fence, ProviderStep.objects.get().pk, response_id="r1", usage=None, last_seq=1,
            calls=[],
        )  # fmt: skip
        complete(fence, last_seq=1, text="It is 4.")

        assert_settled(turn, "completed", code="", text="It is 4.")

    def test_an_answer_at_its_bound_is_complete(self, turn: Turn, fence: Fence) -> None:
        """behaviour A7"""
        text = "x" * bounds.ASSISTANT_TEXT_MAX_BYTES
        complete(fence, text=text)

        assert_settled(turn, "completed", code="", text=text)

    def test_an_answer_past_its_bound_is_cut_and_not_complete(
        self, turn: Turn, fence: Fence
    ) -> None:
        """behaviour A7"""
        complete(fence, text="é" * bounds.ASSISTANT_TEXT_MAX_BYTES)

        kept = "é" * (bounds.ASSISTANT_TEXT_MAX_BYTES // 2)
        assert_settled(turn, "failed", code="assistant_message_limit_reached", text=kept)

    def test_an_end_is_final(self, fence: Fence) -> None:
        complete(fence, text="4.")
        before = every_row()

        for state in (Turn.State.COMPLETED, Turn.State.FAILED, Turn.State.INTERRUPTED):
            with pytest.raises(StaleFence):
                transitions.finish_turn(fence, state, text="late")
        assert every_row() == before


class TestFailure:
    def test_a_failure_keeps_the_text_and_names_its_code(
        self, turn: Turn, fence: Fence
    ) -> None:
        """behaviour A4, E4"""
        say(turn, "It is ")
        code = ErrorCode.PROVIDER_UNAVAILABLE
        transitions.finish_turn(fence, Turn.State.FAILED, error_code=code, response_id="r1")

        assert_settled(turn, "failed", code=code, text="It is ")
        step = ProviderStep.objects.get()
        assert (step.state, step.error_code, step.response_id) == ("failed", code, "r1")

    def test_a_failure_without_a_code_says_that_it_was_ours(
        self, turn: Turn, fence: Fence
    ) -> None:
        transitions.finish_turn(fence, Turn.State.FAILED)

        assert_settled(turn, "failed", code="internal_error")

    @pytest.mark.parametrize(
        ("end", "requested", "running"),
        [
            ("failed", ("cancelled", "not_started"), ("interrupted", "outcome_unknown")),
            ("interrupted", ("interrupted", "not_started"), ("interrupted", "outcome_unknown")),
            ("cancelled", ("cancelled", "not_started"), ("cancelled", "cancelled")),
        ],
    )
    def test_open_calls_end_with_what_is_known_of_them(
        self,
        turn: Turn,
        fence: Fence,
        end: str,
        requested: tuple[str, str],
        running: tuple[str, str],
    ) -> None:
        """behaviour C5, D5"""
        done = make.ToolStepFactory.create(
            turn=turn, provider_step__sequence=2, succeeded=True, call_id="done"
        )
        step = done.provider_step
        make.ToolStepFactory.create(turn=turn, provider_step=step, call_id="requested")
        make.ToolStepFactory.create(
            turn=turn, provider_step=step, call_id="running", running=True
        )
        transitions.finish_turn(fence, Turn.State(end), error_code=ErrorCode.INTERNAL_ERROR)

        ends = {tool.call_id: (tool.state, tool.error_code) for tool in ToolStep.objects.all()}
        assert ends == {
            "done": ("succeeded", ""), "requested": requested, "running": running
        }  # fmt: skip


class TestCancelled:
    @pytest.fixture
    def turn(self) -> Turn:
        return make.TurnFactory.create(cancel_requested=True, asked=True)

    @pytest.mark.parametrize("reported", ["completed", "failed", "interrupted", "cancelled"])
    def test_after_a_cancel_every_end_is_cancelled(
        self, turn: Turn, fence: Fence, reported: str
    ) -> None:
        """failure H27"""
        say(turn, "It is ")
        transitions.finish_turn(fence, Turn.State(reported), last_seq=1)

        assert_settled(turn, "cancelled", code="cancelled", text="It is ")

    def test_what_came_after_the_cancel_is_counted_and_not_kept(
        self, turn: Turn, fence: Fence
    ) -> None:
        """failure H27"""
        say(turn, "It is ")
        done = complete(fence, text="It is fôur.", last_seq=1)

        assert_settled(turn, "cancelled", code="cancelled", text="It is ")
        assert (done.late_bytes, done.late_digest) == (6, digest("fôur."))

    def test_an_open_call_is_cancelled_with_it(self, turn: Turn, fence: Fence) -> None:
        """behaviour D5"""
        tool = make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, running=True)
        complete(fence)

        tool.refresh_from_db()
        assert (tool.state, tool.error_code) == ("cancelled", "cancelled")


class TestSetWise:
    def test_a_stopping_runtime_ends_what_it_still_holds(self) -> None:
        first, second, ended = make.TurnFactory.create_batch(3, running=True, asked=True)
        asked_to_stop = make.TurnFactory.create(cancel_requested=True, asked=True)
        for turn in (first, asked_to_stop):
            say(turn, "It is ")
        transitions.finish_turn(make.fence_of(ended), Turn.State.COMPLETED, text="4.")
        elsewhere = Fence(second.pk, 2, make.fence_of(second).token)

        fences = [make.fence_of(turn) for turn in (first, ended, asked_to_stop)]
        pks = transitions.interrupt_own_turns([*fences, elsewhere], ErrorCode.RUNTIME_STOPPED)

        assert sorted(pks) == sorted([first.pk, asked_to_stop.pk])
        assert_settled(first, "interrupted", code="runtime_stopped", text="It is ")
        assert_settled(asked_to_stop, "cancelled", code="cancelled", text="It is ")
        assert_settled(ended, "completed", code="", text="4.")
        second.refresh_from_db()
        assert second.state == "running"

    def test_nothing_held_is_nothing_done(self) -> None:
        assert transitions.interrupt_own_turns([], ErrorCode.RUNTIME_STOPPED) == []

    @pytest.mark.parametrize("letter", ["x", "é", "€", "𐍈"])
    @pytest.mark.parametrize("shift", range(4))
    def test_text_past_its_bound_is_cut_at_the_end_of_a_character(
        self, turn: Turn, letter: str, shift: int
    ) -> None:
        """Only a writer that broke the bound leaves it; recovery must still end the row."""
        piece = letter * (bounds.CHUNK_MAX_BYTES // len(letter.encode()))
        whole = "y" * shift + piece * 5
        say(turn, "y" * shift, *[piece] * 5)
        transitions.interrupt_turns(
            [turn.pk], ErrorCode.RUNTIME_LOST, conversation_ids=[turn.conversation_id]
        )

        kept = whole.encode()[: bounds.ASSISTANT_TEXT_MAX_BYTES].decode(errors="ignore")
        assert_settled(turn, "interrupted", code="runtime_lost", text=kept)
