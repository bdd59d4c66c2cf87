"""What a pause stops and what it leaves alone."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from recovery.errors import ErrorCode, Refused
from recovery.switches import RETRY_SECONDS, State, set_release
from tests import factories as make
from turns import transitions
from turns.models import Conversation, Message, Turn
from turns.recovery import TurnRecovery
from turns.tokens import create_token

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def conversation() -> Conversation:
    return make.ConversationFactory.create()


@pytest.mark.parametrize("state", [State.DRAINING, State.DISABLED])
def test_a_paused_installation_admits_nothing_and_writes_nothing(
    conversation: Conversation, state: State
) -> None:
    set_release("turns", state)

    with pytest.raises(Refused) as refused:
        transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?")

    assert refused.value.code == ErrorCode.PAUSED
    assert not Message.objects.exists()
    revision = Conversation.objects.get(pk=conversation.pk).revision
    assert revision == conversation.revision


def test_a_repeated_request_is_told_of_its_turn_during_a_pause(
    conversation: Conversation,
) -> None:
    def ask() -> transitions.Admission:
        return transitions.admit_turn(
            conversation.owner_id, conversation.pk, "Why?", client_key="k"
        )

    first = ask()
    set_release("turns", State.DISABLED)
    assert ask() == transitions.Admission(first.turn, created=False)


def test_after_resume_questions_are_taken_again(conversation: Conversation) -> None:
    set_release("turns", State.DRAINING)
    set_release("turns", State.OPEN)
    assert transitions.admit_turn(conversation.owner_id, conversation.pk, "Why?").created


def test_while_draining_what_was_admitted_is_claimed_and_finished() -> None:
    queued, owner = make.TurnFactory.create(), make.RuntimeFactory.create().pk
    set_release("turns", State.DRAINING)

    fence = transitions.claim_turn(queued.pk, owner=owner)
    assert fence is not None
    step = transitions.capture_receipt(fence, make.request_facts())
    transitions.complete_provider_step(
        fence, step.pk, response_id="r", usage=None, last_seq=None, calls=[]
    )
    ended = transitions.finish_turn(fence, Turn.State.COMPLETED, text="So.", last_seq=None)
    assert ended.state == "completed"


def test_while_disabled_nothing_is_claimed_and_what_runs_goes_on() -> None:
    queued, owner = make.TurnFactory.create(), make.RuntimeFactory.create().pk
    running = make.TurnFactory.create(running=True, asked=True)
    set_release("turns", State.DISABLED)

    assert transitions.claim_turn(queued.pk, owner=owner) is None
    assert Turn.objects.get(pk=queued.pk).state == "queued"
    ended = transitions.finish_turn(
        make.fence_of(running), Turn.State.COMPLETED, text="So.", last_seq=None
    )
    assert ended.state == "completed"

    set_release("turns", State.OPEN)
    assert transitions.claim_turn(queued.pk, owner=owner) is not None


def test_cancel_and_recovery_work_during_a_pause() -> None:
    queued = make.TurnFactory.create()
    orphan = make.TurnFactory.create(orphaned=True, asked=True)
    set_release("turns", State.DISABLED)

    cancelled, accepted = transitions.request_cancel(queued.conversation.owner_id, queued.pk)
    assert (cancelled.state, accepted) == ("cancelled", True)
    assert TurnRecovery().settle_orphans().interrupted == 1
    assert Turn.objects.get(pk=orphan.pk).state == "interrupted"


def test_what_waits_while_disabled_is_due_as_soon_as_work_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints: list[int] = []
    monkeypatch.setattr("turns.recovery.dispatch_turn", hints.append)
    turn = make.TurnFactory.create(next_dispatch_at=Now() - timedelta(seconds=1))
    set_release("turns", State.DISABLED)
    assert TurnRecovery().settle_orphans().examined == 0

    set_release("turns", State.OPEN)
    assert TurnRecovery().settle_orphans().redispatched == 1
    assert hints == [turn.pk]


def test_the_queue_deadline_holds_while_disabled() -> None:
    turn = make.TurnFactory.create(queue_deadline_at=Now() - timedelta(seconds=1))
    set_release("turns", State.DISABLED)
    assert TurnRecovery().settle_orphans().interrupted == 1
    assert Turn.objects.get(pk=turn.pk).error_code == "never_started"


def test_the_api_answers_503_with_the_time_to_come_back(
    client: Client, conversation: Conversation
) -> None:
    token = create_token(conversation.owner_id)
    set_release("turns", State.DRAINING)

    answer = client.post(
        f"/api/v1/conversations/{conversation.pk}/turns",
        {"text": "Why?"},
        content_type="application/json",
        headers={"Authorization": f"Bearer {token}"},
    )

    assert answer.status_code == 503
    assert answer.json() == {
        "code": "paused",
        "message": "New work is paused for maintenance.",
    }
    assert answer.headers["Retry-After"] == str(RETRY_SECONDS)
