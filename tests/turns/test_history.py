"""What a provider is told: valid whatever crashed, within bounds whatever was said."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import ErrorCode
from tests import factories as make
from turns import bounds, history, transitions
from turns.history import Pair, Said, compose
from turns.models import Conversation, Message, ToolStep, Turn
from turns.providers.types import (
    AssistantText,
    FunctionCall,
    FunctionResult,
    Item,
    TextRequest,
    ToolSchema,
    UserText,
)
from turns.requests import REPORT_INSTRUCTIONS, Requests
from turns.transitions import RequestFacts


def require_valid(items: tuple[Item, ...]) -> None:
    """Fail as a strict provider would."""
    open_calls: dict[str, FunctionCall] = {}
    ids: set[str] = set()
    assert isinstance(items[0], UserText)
    for before, item in pairwise((items[0], *items)):
        match item:
            case FunctionCall():
                assert item.call_id not in ids, "one id for two calls"
                answers = isinstance(before, FunctionResult)
                assert not (answers and open_calls), "a call between results"
                ids.add(item.call_id)
                open_calls[item.call_id] = item
                assert isinstance(json.loads(item.arguments), dict)
            case FunctionResult():
                assert item.call_id in open_calls, "a result without its call"
                del open_calls[item.call_id]
            case UserText() | AssistantText():
                assert not open_calls, "no output found for a call"
                assert item.text
    assert not open_calls, "no output found for a call"


def told(turn: Turn, **settings: Any) -> tuple[Item, ...]:
    items = history.read(turn, **settings).items
    require_valid(items)
    return items


@pytest.mark.django_db
class TestReading:
    def test_a_first_question_is_told_alone(self) -> None:
        turn = make.TurnFactory.create(running=True, user_message__text="Why?")

        assert told(turn) == (UserText("Why?"),)

    def test_earlier_messages_are_told_in_order(self) -> None:
        first = answered("Why?", "Because.")
        turn = next_turn(first.conversation, "And?")

        assert told(turn) == (UserText("Why?"), AssistantText("Because."), UserText("And?"))

    @pytest.mark.parametrize("unseen", [" \n", "\u200b", "\ufeff \u2060"])
    def test_an_answer_in_which_nothing_is_to_be_seen_is_not_told(self, unseen: str) -> None:
        first = answered("Why?", unseen)
        turn = next_turn(first.conversation, "And?")

        assert told(turn) == (UserText("Why?"), UserText("And?"))

    def test_a_report_that_nobody_asked_for_in_a_message_is_told(self) -> None:
        """behaviour O1: a job's report is visible to later turns, also where it comes first"""
        conversation = make.ConversationFactory.create()
        report = {"conversation": conversation, "answered": True}
        make.MessageFactory.create(**report, text="Found it.")
        first = answered("Why?", "Because.", conversation=conversation)
        make.MessageFactory.create(**report, text="Found more.")
        turn = next_turn(first.conversation, "And?")

        assert told(turn) == (
            UserText(history.REPORTED), AssistantText("Found it."),
            UserText("Why?"), AssistantText("Because."), AssistantText("Found more."),
            UserText("And?"),
        )  # fmt: skip

    def test_nobody_elses_words_are_told(self) -> None:
        answered("a stranger's", "words")
        turn = make.TurnFactory.create(running=True, user_message__text="Why?")

        assert told(turn) == (UserText("Why?"),)

    @pytest.mark.parametrize("end", ["failed", "cancelled", "interrupted"])
    def test_what_arrived_of_a_broken_answer_is_told(self, end: str) -> None:
        broken = answered("Why?", "Becau", end=end)
        silent = answered("Hm?", "", end=end, conversation=broken.conversation)
        turn = next_turn(silent.conversation, "And?")

        assert told(turn) == (
            UserText("Why?"), AssistantText("Becau"), UserText("Hm?"), UserText("And?")
        )  # fmt: skip

    def test_a_calls_result_follows_it_where_the_model_made_it(self) -> None:
        turn = make.TurnFactory.create(running=True, user_message__text="Why?")
        fence = make.fence_of(turn)
        step = transitions.capture_receipt(fence, make.request_facts())
        make.TextChunkFactory.create(turn=turn, text="Let me see. ")
        (tool,) = transitions.complete_provider_step(
            fence,
            step.pk,
            response_id="r1",
            usage=None,
            last_seq=1,
            calls=[transitions.RequestedCall("c1", "i1", "search_history", '{"q": 1}')],
        )
        transitions.start_tool_step(fence, tool.pk)
        transitions.finish_tool_step(fence, tool.pk, ToolStep.State.SUCCEEDED, result="found")
        transitions.start_provider_step(fence, make.request_facts())
        make.TextChunkFactory.create(turn=turn, text="It is")

        so_far: tuple[Item, ...] = (
            UserText("Why?"),
            AssistantText("Let me see. "),
            FunctionCall("c1", "search_history", '{"q": 1}'),
            FunctionResult("c1", "found"),
            AssistantText("It is"),
        )
        assert told(turn) == so_far
        # and the same afterwards, from the folded message
        transitions.finish_turn(fence, Turn.State.COMPLETED, last_seq=2, text="It is 4.")
        following = next_turn(turn.conversation, "And?")
        assert told(following) == (*so_far[:-1], AssistantText("It is 4."), UserText("And?"))

    def test_the_calls_of_one_response_are_told_before_their_results(self) -> None:
        turn = make.TurnFactory.create(running=True, asked=True)
        for sequence, names in ((2, "ab"), (3, "c")):
            response = make.ProviderStepFactory.create(
                turn=turn, sequence=sequence, completed=True
            )
            for name in names:
                make.ToolStepFactory.create(
                    turn=turn, provider_step=response, succeeded=True, call_id=name
                )
        called = [
            item for item in told(turn) if isinstance(item, FunctionCall | FunctionResult)
        ]

        assert [(type(item), item.call_id) for item in called] == [
            (FunctionCall, "a"), (FunctionCall, "b"),
            (FunctionResult, "a"), (FunctionResult, "b"),
            (FunctionCall, "c"), (FunctionResult, "c"),
        ]  # fmt: skip

    @pytest.mark.parametrize("effect", ["read", "external"])
    @pytest.mark.parametrize("died", ["requested", "running"])
    def test_a_call_without_an_outcome_gets_one_that_says_so(
        self, effect: str, died: str
    ) -> None:
        """failure H22"""
        turn = make.TurnFactory.create(orphaned=True, asked=True)
        done = make.ToolStepFactory.create(
            turn=turn, provider_step__sequence=2, succeeded=True, call_id="done"
        )
        make.ToolStepFactory.create(
            turn=turn, provider_step=done.provider_step, call_id="lost", effect=effect,
            **({"running": True} if died == "running" else {}),
        )  # fmt: skip
        transitions.interrupt_turns(
            [turn.pk], ErrorCode.RUNTIME_LOST, conversation_ids=[turn.conversation_id]
        )
        results = {
            item.call_id: item.output
            for item in told(next_turn(turn.conversation, "And?"))
            if isinstance(item, FunctionResult)
        }

        assert results["done"] == "found"
        outcome = json.loads(results["lost"])
        assert outcome["status"] == "interrupted"
        if died == "requested":
            assert outcome["error"] == "not_started"
        else:
            assert outcome["error"] == "outcome_unknown"
            assert ("unknown whether it took effect" in outcome["message"]) == (
                effect == "external"
            )

    def test_a_failed_call_is_told_with_its_code(self) -> None:
        turn = make.TurnFactory.create(running=True, asked=True)
        make.ToolStepFactory.create(turn=turn, provider_step__sequence=2, failed=True)
        (result,) = [item for item in told(turn) if isinstance(item, FunctionResult)]

        assert json.loads(result.output)["error"] == "tool_failed"

    @pytest.mark.parametrize("arguments", ["", "[1]", "{", '{"a": NaN}', "null"])
    def test_arguments_that_are_no_object_are_told_as_an_empty_one(
        self, arguments: str
    ) -> None:
        turn = make.TurnFactory.create(running=True, asked=True)
        make.ToolStepFactory.create(
            turn=turn, provider_step__sequence=2, failed=True, arguments=arguments
        )
        (call,) = [item for item in told(turn) if isinstance(item, FunctionCall)]

        assert call.arguments == "{}"

    def test_ids_that_a_server_repeats_in_each_turn_are_told_apart(self) -> None:
        first = make.TurnFactory.create(running=True, asked=True)
        make.ToolStepFactory.create(
            turn=first, provider_step__sequence=2, succeeded=True, call_id="1:0"
        )
        transitions.finish_turn(make.fence_of(first), Turn.State.COMPLETED, text="4.")
        second = next_turn(first.conversation, "And?")
        make.ToolStepFactory.create(turn=second, succeeded=True, call_id="1:0")
        calls = [item.call_id for item in told(second) if isinstance(item, FunctionCall)]

        assert len(set(calls)) == 2

    def test_only_the_newest_32_messages_are_told(self) -> None:
        conversation = make.ConversationFactory.create()
        for number in range(20):
            answered(f"question {number}", f"answer {number}", conversation=conversation)
        items = told(next_turn(conversation, "last"))

        assert items[0] == UserText("question 5")
        assert len(items) == 31

    def test_a_question_without_its_answer_is_still_told(self) -> None:
        """A person may remove an answer."""
        first = answered("Why?", "Because.")
        conversation = first.conversation
        answer = first.assistant_message_id
        first.delete()
        Message.objects.filter(pk=answer).delete()

        assert told(next_turn(conversation, "And?")) == (UserText("Why?"), UserText("And?"))

    def test_the_request_is_recorded_without_its_words(self) -> None:
        """behaviours C1, E1"""
        turn = make.TurnFactory.create(
            running=True, model="model-a", user_message__text="private words"
        )
        tool = ToolSchema("search_history", "Search.", {"type": "object"})
        building = Requests("Be brief.", 4_096, None, (tool,))

        def build() -> tuple[TextRequest, RequestFacts]:
            return building.build(turn.pk, step=1, provider_api="responses", offer_tools=True)

        request, facts = build()
        assert request.instructions == "Be brief."
        assert (request.model, request.items) == ("model-a", (UserText("private words"),))
        assert (facts.model, facts.message_count, facts.offers_tools) == ("model-a", 1, True)
        assert "private" not in repr(facts)
        assert build() == (request, facts)

    def test_the_last_request_offers_no_tools_and_asks_for_a_report(self) -> None:
        """behaviour C4"""
        turn = make.TurnFactory.create(running=True)
        tool = ToolSchema("search_history", "Search.", {"type": "object"})
        request, facts = Requests("Be brief.", 4_096, None, (tool,)).build(
            turn.pk, step=17, provider_api="responses", offer_tools=False
        )

        assert REPORT_INSTRUCTIONS in request.instructions
        assert request.tools == ()
        assert not facts.offers_tools


def answered(
    question: str,
    answer: str,
    *,
    end: str = "completed",
    conversation: Conversation | None = None,
) -> Turn:
    """Return an ended turn with these words."""
    conversation = conversation or make.ConversationFactory.create()
    asked = make.MessageFactory.create(conversation=conversation, text=question)
    said = make.MessageFactory.create(
        conversation=conversation,
        answered=True,
        text=answer,
        state="complete" if end == "completed" else end,
    )
    return make.TurnFactory.create(
        conversation=conversation, user_message=asked, assistant_message=said, **{end: True}
    )


def next_turn(conversation: Conversation, question: str) -> Turn:
    return make.TurnFactory.create(
        running=True, conversation=conversation, user_message__text=question
    )


# --- composing, without rows ---

words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00"),
    min_size=1,
    max_size=600,
)
pairs = st.builds(
    lambda call_id, arguments, output, response: Pair(
        FunctionCall(call_id, "search_history", json.dumps({"q": arguments})),
        FunctionResult(call_id, output),
        response,
    ),
    st.sampled_from(["call_0", "call_1", "1:0"]) | st.builds(lambda: uuid4().hex),
    words,
    words | st.integers(1, 40_000).map("x".__mul__),
    st.integers(1, 2),
)
answers = st.lists(st.builds(AssistantText, words) | pairs, max_size=6).map(
    lambda parts: Said(tuple(parts))
)
questions = words.map(lambda text: Said((UserText(text),)))
reports = words.map(lambda text: Said((AssistantText(text),), is_unasked=True))


@settings(deadline=None)
@given(
    earlier=st.lists(questions | answers | reports, max_size=40),
    question=words,
    answer=answers,
    max_bytes=st.integers(1_024, bounds.HISTORY_MAX_BYTES),
)
def test_every_history_is_one_a_strict_provider_accepts(
    earlier: list[Said], question: str, answer: Said, max_bytes: int
) -> None:
    """failure H23"""
    made = compose(earlier, question=question, answer=answer, max_bytes=max_bytes)

    require_valid(made.items)
    asked = UserText(question)
    assert asked in made.items
    assert made.message_count <= bounds.HISTORY_MAX_MESSAGES + 1
    size = sum(len(value.encode()) for item in made.items for value in vars_of(item))
    assert made.byte_count == size
    # the question is never cut, nor the last part of the answer left out, whose id may grow
    last = history._part_bytes(answer.parts[-1]) + 8 if answer.parts else 0
    assert size <= max(max_bytes, len(question.encode()) + last)


@settings(deadline=None)
@given(
    outputs=st.lists(st.integers(0, 60_000).map("x".__mul__), min_size=1, max_size=16),
    max_bytes=st.integers(20_000, bounds.HISTORY_MAX_BYTES),
)
def test_results_of_the_turn_at_work_are_cut_before_any_is_left_out(
    outputs: list[str], max_bytes: int
) -> None:
    parts = tuple(
        Pair(FunctionCall(f"c{n}", "search_history", "{}"), FunctionResult(f"c{n}", output), 1)
        for n, output in enumerate(outputs)
    )
    made = compose([], question="Why?", answer=Said(parts), max_bytes=max_bytes)
    results = [item for item in made.items if isinstance(item, FunctionResult)]

    assert len(results) == len(outputs)
    assert made.byte_count <= max_bytes
    for result, output in zip(results, outputs, strict=True):
        assert result.output == output or result.output.endswith("bytes in all]")


def test_each_part_is_measured_a_few_times_however_many_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model may ask for its 32 calls again in each of 32 responses."""
    measured = 0
    size_of = history._bytes_of

    def counting(item: Item) -> int:
        nonlocal measured
        measured += 1
        return size_of(item)

    monkeypatch.setattr(history, "_bytes_of", counting)
    parts = tuple(
        Pair(FunctionCall("c", "count", "{}"), FunctionResult("c", "x" * 600), n // 32)
        for n in range(32 * 32)
    )
    made = compose([], question="Why?", answer=Said(parts), max_bytes=20_000)

    assert made.byte_count <= 20_000
    assert measured <= 16 * len(parts)


def test_a_question_is_never_cut() -> None:
    question = "x" * bounds.USER_MESSAGE_MAX_BYTES
    made = compose(
        [Said((UserText("Why?"),))], question=question, answer=Said(()), max_bytes=1_024
    )

    assert made.items == (UserText(question),)


def vars_of(item: Item) -> list[str]:
    return [getattr(item, name) for name in item.__slots__]
