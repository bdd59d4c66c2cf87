"""The JSON API: its statuses and shapes, and that everything repeats safely."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from recovery.errors import ErrorCode
from tests.factories import (
    ConversationFactory,
    MessageFactory,
    ReceiptFactory,
    TextChunkFactory,
    ToolStepFactory,
    TurnFactory,
    UserFactory,
    fence_of,
)
from tests.support.api import Api
from turns.models import ApiToken, Conversation, Message, ToolStep, Turn
from turns.tokens import create_token
from turns.transitions import finish_turn

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def api() -> Api:
    return Api(UserFactory().pk)


@pytest.fixture
def conversation(api: Api) -> Conversation:
    return ConversationFactory(owner_id=api.user_id, owner=None)


# --- Conversations ---


def test_a_conversation_is_created_listed_renamed_and_deleted(api: Api) -> None:
    status, created = api("POST", "/conversations", {"title": " Trees "})
    assert status == 201
    assert created.keys() == {"id", "title", "created_at"}
    assert created["title"] == "Trees"
    assert isinstance(created["id"], str)

    status, renamed = api("PATCH", f"/conversations/{created['id']}", {"title": "Oaks"})
    assert (status, renamed) == (200, {**created, "title": "Oaks"})
    status, listed = api("GET", "/conversations")
    assert (status, listed["next"]) == (200, None)
    assert listed["conversations"] == [{**renamed, "excerpt": "", "active": False}]

    assert api("DELETE", f"/conversations/{created['id']}") == (204, None)
    assert api("DELETE", f"/conversations/{created['id']}")[0] == 404
    assert api("GET", "/conversations")[1]["conversations"] == []


def test_a_client_key_creates_one_conversation(api: Api) -> None:
    """behaviour A2"""
    status, first = api("POST", "/conversations", {"client_key": "a"})
    assert status == 201
    assert api("POST", "/conversations", {"client_key": "a"}) == (200, first)
    status, other = api("POST", "/conversations", {"client_key": "b"})
    assert status == 201
    assert other["id"] != first["id"]
    assert Api(UserFactory().pk)("POST", "/conversations", {"client_key": "a"})[0] == 201


def test_conversations_are_listed_by_last_activity_a_page_at_a_time(api: Api) -> None:
    ids = [str(ConversationFactory(owner_id=api.user_id, owner=None).pk) for _ in range(5)]
    api("POST", f"/conversations/{ids[0]}/turns", {"text": "Newest activity"})
    expected = [ids[0], *ids[:0:-1]]
    seen: list[str] = []
    after = ""
    while True:
        _, page = api("GET", f"/conversations?limit=2{after}")
        seen += [row["id"] for row in page["conversations"]]
        if page["next"] is None:
            break
        assert len(page["conversations"]) == 2
        after = f"&before={page['next']}"
    assert seen == expected
    first = api("GET", "/conversations")[1]["conversations"][0]
    assert (first["excerpt"], first["active"]) == ("Newest activity", True)


def test_deleting_a_conversation_ends_its_running_turn_for_its_owner(
    api: Api, conversation: Conversation
) -> None:
    turn = TurnFactory(conversation=conversation, running=True, asked=True)
    TextChunkFactory(turn=turn)
    assert api("DELETE", f"/conversations/{conversation.pk}")[0] == 204
    assert not Turn.objects.exists()
    assert not Message.objects.exists()


# --- Turns ---


def test_a_question_is_accepted_with_its_queued_turn(
    api: Api, conversation: Conversation
) -> None:
    status, turn = api("POST", f"/conversations/{conversation.pk}/turns", {"text": "Why?"})
    assert status == 202
    assert turn.keys() == {
        "id", "conversation_id", "state", "error_code", "error_message", "generation",
        "created_at", "finished_at", "usage", "user", "assistant", "steps",
    }  # fmt: skip
    assert (turn["state"], turn["conversation_id"]) == ("queued", str(conversation.pk))
    assert turn["user"].keys() == {"id", "role", "state", "text", "created_at", "turn_id"}
    assert (turn["user"]["text"], turn["user"]["turn_id"]) == ("Why?", turn["id"])
    assert turn["assistant"] == {
        "id": turn["assistant"]["id"], "state": "streaming", "text": "",
    }  # fmt: skip
    assert (turn["usage"], turn["steps"], turn["generation"]) == (None, [], 0)
    assert api("GET", f"/turns/{turn['id']}") == (200, turn)


def test_a_client_key_asks_once_whatever_became_of_it(
    api: Api, conversation: Conversation
) -> None:
    path = f"/conversations/{conversation.pk}/turns"
    status, turn = api("POST", path, {"text": "Why?", "client_key": "k"})
    assert status == 202
    assert api("POST", path, {"text": "Why?", "client_key": "k"}) == (200, turn)
    assert api("POST", path, {"text": "How?", "client_key": "k"})[1]["code"] == (
        "client_key_conflict"
    )
    assert Message.objects.count() == 2
    api("POST", f"/turns/{turn['id']}/cancel")
    status, repeated = api("POST", path, {"text": "Why?", "client_key": "k"})
    assert (status, repeated["id"], repeated["state"]) == (200, turn["id"], "cancelled")


def test_a_second_question_during_an_answer_is_refused(
    api: Api, conversation: Conversation
) -> None:
    path = f"/conversations/{conversation.pk}/turns"
    api("POST", path, {"text": "One"})
    status, problem = api("POST", path, {"text": "Two"})
    assert (status, problem["code"]) == (409, "turn_in_progress")
    assert Message.objects.count() == 2


def test_a_turn_shows_live_text_steps_and_usage(api: Api, conversation: Conversation) -> None:
    turn = TurnFactory(conversation=conversation, running=True)
    ReceiptFactory(turn=turn)
    step = ToolStepFactory(turn=turn, running=True)
    ToolStep.objects.filter(pk=step.pk).update(
        state="failed", error_code="tool_failed", finished_at=Now()
    )
    TextChunkFactory(turn=turn, text="Half ")
    TextChunkFactory(turn=turn, text="an answer")
    _, shown = api("GET", f"/turns/{turn.pk}")
    assert shown["assistant"]["text"] == "Half an answer"
    assert shown["steps"] == [
        {"id": str(step.provider_step_id), "kind": "provider", "name": "scripted",
         "state": "completed", "error_code": None},
        {"id": str(step.pk), "kind": "tool", "name": "search_history",
         "state": "failed", "error_code": "tool_failed"},
    ]  # fmt: skip

    usage = {"input_tokens": 3, "output_tokens": 2}
    finish_turn(
        fence_of(turn),
        Turn.State.INTERRUPTED,
        error_code=ErrorCode.RUNTIME_LOST,
        usage=usage,
        last_seq=2,
    )
    _, ended = api("GET", f"/turns/{turn.pk}")
    assert (ended["state"], ended["error_code"]) == ("interrupted", "runtime_lost")
    assert ended["error_message"] == "The process doing this work died before it finished."
    assert ended["assistant"] == {**shown["assistant"], "state": "interrupted"}
    assert ended["finished_at"] is not None


def test_cancelling_is_accepted_once_and_then_answers_with_the_end(
    api: Api, conversation: Conversation
) -> None:
    _, turn = api("POST", f"/conversations/{conversation.pk}/turns", {"text": "Why?"})
    status, stopped = api("POST", f"/turns/{turn['id']}/cancel")
    assert (status, stopped["state"]) == (202, "cancelled")
    assert api("POST", f"/turns/{turn['id']}/cancel") == (200, stopped)


def test_a_running_turn_is_cancelled_by_its_owner_later(
    api: Api, conversation: Conversation
) -> None:
    turn = TurnFactory(conversation=conversation, running=True)
    for _ in range(2):
        status, shown = api("POST", f"/turns/{turn.pk}/cancel")
        assert (status, shown["state"]) == (202, "running")
    turn.refresh_from_db()
    assert turn.cancel_requested_at is not None


# --- Messages ---


def test_messages_are_listed_newest_first_a_page_at_a_time(
    api: Api, conversation: Conversation
) -> None:
    ids = [str(MessageFactory(conversation=conversation).pk) for _ in range(5)]
    path = f"/conversations/{conversation.pk}/messages"
    _, first = api("GET", f"{path}?limit=3")
    assert [m["id"] for m in first["messages"]] == ids[:1:-1]
    assert first["messages"][0].keys() == {
        "id", "role", "state", "text", "created_at", "turn_id",
    }  # fmt: skip
    _, rest = api("GET", f"{path}?limit=3&before={first['next']}")
    assert [m["id"] for m in rest["messages"]] == ids[1::-1]
    assert rest["next"] is None


def test_a_message_is_corrected_and_keeps_its_answer(
    api: Api, conversation: Conversation
) -> None:
    turn = TurnFactory(conversation=conversation, completed=True)
    status, message = api("PATCH", f"/messages/{turn.user_message_id}", {"text": "Corrected"})
    assert (status, message["text"], message["turn_id"]) == (200, "Corrected", str(turn.pk))
    row = Message.objects.get(pk=turn.user_message_id)
    assert row.edited_at is not None
    assert Turn.objects.filter(pk=turn.pk).exists()
    assert api("GET", f"/messages/{row.pk}")[1]["text"] == "Corrected"


def test_an_answer_cannot_be_corrected(api: Api, conversation: Conversation) -> None:
    turn = TurnFactory(conversation=conversation, completed=True)
    status, problem = api("PATCH", f"/messages/{turn.assistant_message_id}", {"text": "x"})
    assert (status, problem["code"]) == (422, "invalid_request")


def test_with_a_question_goes_its_answer_and_without_an_answer_the_question_stays(
    api: Api, conversation: Conversation
) -> None:
    asked, answered = (TurnFactory(conversation=conversation, completed=True) for _ in range(2))
    assert api("DELETE", f"/messages/{asked.user_message_id}")[0] == 204
    assert api("DELETE", f"/messages/{answered.assistant_message_id}")[0] == 204
    assert list(Message.objects.values_list("pk", flat=True)) == [answered.user_message_id]
    assert not Turn.objects.exists()
    _, left = api("GET", f"/conversations/{conversation.pk}/messages")
    assert [(m["id"], m["turn_id"]) for m in left["messages"]] == [
        (str(answered.user_message_id), None)
    ]


@pytest.mark.parametrize(
    ("method", "side"), [("PATCH", "user"), ("DELETE", "user"), ("DELETE", "assistant")]
)
def test_a_message_being_answered_cannot_be_changed(
    api: Api, conversation: Conversation, method: str, side: str
) -> None:
    turn = TurnFactory(conversation=conversation, running=True)
    message_id = turn.user_message_id if side == "user" else turn.assistant_message_id
    status, problem = api(method, f"/messages/{message_id}", {"text": "x"})
    assert (status, problem["code"]) == (409, "turn_in_progress")
    assert Message.objects.count() == 2


# --- Tokens ---


def test_a_token_is_stored_as_a_digest_and_its_use_is_noted(api: Api) -> None:
    row = ApiToken.objects.get(user_id=api.user_id)
    token = create_token(api.user_id)
    stored = set(ApiToken.objects.values_list("digest", flat=True))
    assert token not in stored
    assert all(len(one) == 64 for one in stored)
    assert row.last_used_at is None
    api("GET", "/conversations")
    row.refresh_from_db()
    assert row.last_used_at is not None
