"""What an operator sees of a turn: everything that happened, nothing that was said."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests import factories as make
from turns.models import ToolStep, Turn
from turns.timeline import timeline

pytestmark = pytest.mark.django_db

SECRET = "a very private sentence"


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(make.UserFactory.create(is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def turn() -> Turn:
    """A running turn with a call under way, and words of the person in every place for them."""
    turn = make.TurnFactory.create(running=True, asked=True, user_message__text=SECRET)
    ToolStep.objects.filter(
        pk=make.ToolStepFactory.create(
            turn=turn, provider_step__sequence=2, running=True, arguments=f'{{"q": "{SECRET}"}}'
        ).pk
    ).update(result=SECRET)
    make.TextChunkFactory.create(turn=turn, text=SECRET)
    turn.conversation.title = SECRET
    turn.conversation.save(update_fields=["title"])
    return turn


@pytest.mark.parametrize("name", ["turn", "conversation", "message"])
def test_lists_and_pages_show_no_content(staff: Client, turn: Turn, name: str) -> None:
    pk = {
        "turn": turn.pk,
        "conversation": turn.conversation_id,
        "message": turn.user_message_id,
    }[name]
    listed = staff.get(reverse(f"admin:turns_{name}_changelist"))
    shown = staff.get(reverse(f"admin:turns_{name}_change", args=[pk]))

    assert listed.status_code == shown.status_code == 200
    assert SECRET not in listed.content.decode()
    assert SECRET not in shown.content.decode()


def test_a_turns_page_shows_its_timeline_and_steps(staff: Client, turn: Turn) -> None:
    page = staff.get(reverse("admin:turns_turn_change", args=[turn.pk])).content.decode()

    for words in ("admitted", "claimed, generation 1", "provider step 1 started"):
        assert words in page
    assert f"{len(SECRET)} bytes, {turn.user_message.digest}" in page


def test_nothing_can_be_changed_added_or_deleted(staff: Client, turn: Turn) -> None:
    page = reverse("admin:turns_turn_change", args=[turn.pk])

    assert staff.post(page, {"state": "completed"}).status_code == 403
    assert staff.get(reverse("admin:turns_turn_add")).status_code == 403
    assert staff.post(reverse("admin:turns_turn_delete", args=[turn.pk])).status_code == 403
    assert Turn.objects.get().state == "running"


def test_what_a_person_allows_and_keeps_is_listed_without_its_content(staff: Client) -> None:
    token = make.ApiTokenFactory.create()
    address = make.WebhookAddressFactory.create()

    note = make.NoteFactory.create(text=SECRET)

    for name, pk in (
        ("apitoken", token.pk),
        ("webhookaddress", address.pk),
        ("note", note.pk),
    ):
        assert staff.get(reverse(f"admin:turns_{name}_changelist")).status_code == 200
        page = staff.get(reverse(f"admin:turns_{name}_change", args=[pk]))
        assert page.status_code == 200
        assert token.digest not in page.content.decode()
        assert SECRET not in page.content.decode()


def test_the_timeline_is_in_order_and_tells_the_end(turn: Turn) -> None:
    moments = timeline(turn)

    times = [moment.at for moment in moments if moment.at is not None]
    assert len(times) == len(moments)
    assert times == sorted(times)
    assert moments[0].what == "admitted"
