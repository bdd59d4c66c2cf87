"""Asking: what is stored, what a repeat returns, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from recovery.errors import ErrorCode, Refused
from tests import factories as make
from turns import bounds, transitions
from turns.digests import digest
from turns.models import Conversation, Message, Turn

pytestmark = pytest.mark.django_db


@pytest.fixture
def conversation() -> Conversation:
    return make.ConversationFactory.create()


def ask(conversation: Conversation, text: str = "Why?", key: str | None = None) -> Turn:
    return transitions.admit_turn(
        conversation.owner_id, conversation.pk, text, client_key=key
    ).turn


def end_of(turn: Turn) -> None:
    transitions.request_cancel(turn.conversation.owner_id, turn.pk)


def refusal(act: Callable[[], object]) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.code


def test_admission_stores_question_empty_answer_and_queued_turn(
    conversation: Conversation, settings: Settings
) -> None:
    settings.LLM_MODEL = "model-a"
    turn = ask(conversation, "Why is the sky blue?")

    assert (turn.state, turn.generation, turn.owner) == ("queued", 0, None)
    assert turn.model == "model-a"
    assert turn.limits["tool_calls"] == bounds.TOOL_CALLS_PER_TURN
    assert turn.user_message.text == "Why is the sky blue?"
    assert (turn.assistant_message.state, turn.assistant_message.text) == ("streaming", "")
    assert turn.queue_deadline_at - turn.created_at == timedelta(seconds=300)
    assert turn.next_dispatch_at - turn.created_at == timedelta(seconds=5)


def test_a_turn_keeps_the_model_it_was_admitted_with(
    conversation: Conversation, settings: Settings
) -> None:
    """behaviour E13"""
    settings.LLM_MODEL = "model-a"
    first = ask(conversation)
    settings.LLM_MODEL = "model-b"
    end_of(first)
    second = ask(conversation)

    assert Turn.objects.get(pk=first.pk).model == "model-a"
    assert second.model == "model-b"


def test_the_same_key_and_words_return_the_record(conversation: Conversation) -> None:
    first = ask(conversation, "Why?", key="k1")
    revision = Conversation.objects.get(pk=conversation.pk).revision
    again = transitions.admit_turn(
        conversation.owner_id, conversation.pk, "Why?", client_key="k1"
    )

    assert (again.turn.pk, again.created) == (first.pk, False)
    assert Turn.objects.count() == 1
    assert Message.objects.count() == 2
    assert Conversation.objects.get(pk=conversation.pk).revision == revision


def test_a_repeat_returns_the_record_after_its_end_too(conversation: Conversation) -> None:
    first = ask(conversation, "Why?", key="k1")
    end_of(first)

    assert ask(conversation, "Why?", key="k1").state == "cancelled"


def test_a_repeat_is_recognised_after_the_message_was_corrected(
    conversation: Conversation,
) -> None:
    first = ask(conversation, "Why?", key="k1")
    Message.objects.filter(pk=first.user_message_id).update(text="How?", digest=digest("How?"))

    assert ask(conversation, "Why?", key="k1").pk == first.pk
    assert refusal(lambda: ask(conversation, "How?", key="k1")) == "client_key_conflict"


def test_the_same_key_with_other_words_is_a_conflict(conversation: Conversation) -> None:
    ask(conversation, "Why?", key="k1")

    assert refusal(lambda: ask(conversation, "How?", key="k1")) == "client_key_conflict"
    assert Turn.objects.count() == 1


def test_equal_words_collapse_under_one_key_and_not_under_two(
    conversation: Conversation,
) -> None:
    """failure H18"""
    for key in ("same", "same", "one", "two"):
        end_of(ask(conversation, "Why?", key=key))

    assert Message.objects.filter(role="user").count() == 3


def test_the_same_key_in_two_conversations_is_two_turns() -> None:
    first, second = make.ConversationFactory.create_batch(2)

    assert ask(first, key="k1").pk != ask(second, key="k1").pk


def test_a_second_question_waits_for_the_first_answer(conversation: Conversation) -> None:
    ask(conversation)

    assert refusal(lambda: ask(conversation, "And?")) == "turn_in_progress"
    assert Message.objects.count() == 2


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "interrupted"])
def test_after_any_end_the_next_question_is_accepted(state: str) -> None:
    """failure H01, H03: the durable row alone decides"""
    turn = make.TurnFactory.create(**{state: True})

    assert ask(turn.conversation).state == "queued"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty_message"),
        (" \n\t\u3000", "empty_message"),
        ("\u200b\u2060\ufeff", "empty_message"),
        ("\u3164", "empty_message"),
        ("\u115f \u2800", "empty_message"),
        ("\ufe0f\u034f\U000e0041", "empty_message"),
        ("nul\x00", "invalid_text"),
        ("half a pair \ud83d", "invalid_text"),
        ("x" * 8_001, "message_too_long"),
        ("é" * 4_001, "message_too_long"),
    ],
)
def test_what_cannot_be_said_is_refused(
    conversation: Conversation, text: str, code: str
) -> None:
    assert refusal(lambda: ask(conversation, text)) == code
    assert not Message.objects.exists()
    assert Conversation.objects.get(pk=conversation.pk).revision == 0


@pytest.mark.parametrize("text", ["x" * 8_000, "é" * 4_000, "👩‍👩‍👧 \u2028"])
def test_what_fits_is_kept_as_it_was_said(conversation: Conversation, text: str) -> None:
    assert ask(conversation, text).user_message.text == text


def test_a_foreign_conversation_answers_like_an_unknown_one(conversation: Conversation) -> None:
    stranger = make.UserFactory.create().pk

    for conversation_id in (conversation.pk, 999_999_999):
        with pytest.raises(Refused) as refused:
            transitions.admit_turn(stranger, conversation_id, "Why?")
        assert refused.value.code == "not_found"


@pytest.mark.parametrize("key", ["", "k" * 201, "nul\x00", "\ud83d"])
def test_a_key_that_cannot_be_stored_is_refused(conversation: Conversation, key: str) -> None:
    assert refusal(lambda: ask(conversation, key=key)) == "invalid_request"


def test_the_51st_turn_in_a_minute_is_refused_with_the_time_to_wait(
    conversation: Conversation,
) -> None:
    for _ in range(bounds.TURNS_PER_WINDOW):
        make.TurnFactory.create(conversation=conversation, completed=True)

    with pytest.raises(Refused) as refused:
        ask(conversation)

    assert refused.value.code == "rate_limited"
    assert 0 < (refused.value.retry_after_seconds or 0) <= bounds.TURN_WINDOW_SECONDS


def test_turns_older_than_the_window_do_not_count(conversation: Conversation) -> None:
    minute_ago = timezone.now() - timedelta(seconds=bounds.TURN_WINDOW_SECONDS + 1)
    for _ in range(bounds.TURNS_PER_WINDOW):
        make.TurnFactory.create(
            conversation=conversation, completed=True, created_at=minute_ago
        )

    assert ask(conversation).state == "queued"


def test_a_person_has_at_most_20_turns_at_work() -> None:
    person = make.UserFactory.create()
    for _ in range(bounds.ACTIVE_TURNS_PER_OWNER):
        make.TurnFactory.create(conversation__owner=person, running=True)
    one_more = make.ConversationFactory.create(owner=person)

    with pytest.raises(Refused) as refused:
        ask(one_more)

    assert refused.value.code == "rate_limited"
    assert refused.value.retry_after_seconds
    assert ask(make.ConversationFactory.create()).state == "queued"


def test_a_row_written_past_the_locks_is_still_answered_for(conversation: Conversation) -> None:
    """The unique index has the last word, and its answer is the same."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION squeeze() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "RAISE EXCEPTION USING ERRCODE = 'unique_violation', "
            "CONSTRAINT = 'turns_turn_one_active_per_conversation'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER squeeze BEFORE INSERT ON turns_turn "
            "FOR EACH ROW EXECUTE FUNCTION squeeze()"
        )

    assert refusal(lambda: ask(conversation)) == "turn_in_progress"


class TestConversations:
    def test_a_conversation_is_made_once_under_one_key(self) -> None:
        """behaviour A2"""
        person = make.UserFactory.create().pk
        first, created = transitions.create_conversation(person, client_key="k1")
        again, repeated = transitions.create_conversation(person, client_key="k1")
        other, _ = transitions.create_conversation(person, client_key="k2")

        assert (created, repeated) == (True, False)
        assert first.pk == again.pk != other.pk

    def test_two_people_with_one_key_have_two_conversations(self) -> None:
        first, _ = transitions.create_conversation(make.UserFactory.create().pk, client_key="k")
        second, _ = transitions.create_conversation(
            make.UserFactory.create().pk, client_key="k"
        )

        assert first.pk != second.pk

    @pytest.mark.parametrize("title", ["x" * 201, "nul\x00", "\ud83d"])
    def test_a_title_that_cannot_be_stored_is_refused(self, title: str) -> None:
        person = make.UserFactory.create().pk
        code = refusal(lambda: transitions.create_conversation(person, title=title))

        assert code in {"invalid_request", "invalid_text"}

    def test_nobody_has_no_conversation(self) -> None:
        assert refusal(lambda: transitions.create_conversation(999_999)) == "not_found"
