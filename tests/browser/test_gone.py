"""A conversation that is removed elsewhere: its page ends everything it was about to do."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import WebSocketRoute, expect

from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_job_notices import LOOKED_AT_AGAIN, complete
from tests.browser.test_jobs import GOAL, running_job
from tests.browser.test_reading import said
from tests.factories import ConversationFactory, TurnFactory
from turns.models import Conversation
from turns.transitions import delete_conversation

GONE = "This conversation does not exist any more."
COUNT_CONNECTIONS = """() => {
    window.connections = 0;
    const Plain = window.WebSocket;
    window.WebSocket = class extends Plain {
        constructor(address) { super(address); window.connections += 1; }
    };
}"""


def remove(person: Person, conversation: Conversation) -> None:
    """Remove the conversation as another window would, and wait until this one knows."""
    delete_conversation(conversation.owner_id, conversation.pk)
    person.expect_connection("gone")


def test_the_jobs_of_a_removed_conversation_go_with_every_question_about_them(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    running_job(conversation)
    person.open_conversation(conversation.pk)
    rail.card(GOAL).get_by_role("button", name="Cancel").click()
    dialog = person.page.get_by_role("dialog", name="Cancel this job?")
    expect(dialog).to_be_visible()
    remove(person, conversation)
    expect(dialog).to_be_hidden()
    expect(rail.rail).to_be_hidden()
    expect(rail.cards).to_have_count(0)
    expect(person.page.locator("#jobs-inline > *")).to_have_count(0)
    expect(person.page.locator("#jobs-open")).to_be_empty()
    expect(person.page.locator("#notice")).to_contain_text(GONE)
    expect(person.page.get_by_role("link", name="To your conversations")).to_be_focused()
    expect(person.page.locator(".conversation")).to_have_count(0)
    person.page.get_by_role("button", name="Jobs", exact=True).click()
    expect(person.button("New job")).to_be_disabled()


def test_notices_of_a_removed_conversation_go_and_those_of_others_come(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    elsewhere = ConversationFactory.create(owner=conversation.owner, title="Ropes")
    here, there = running_job(conversation), running_job(elsewhere, "Splice the rope.")
    person.open_conversation(conversation.pk)
    expect(person.page.locator("#jobs-elsewhere li")).to_have_count(1)
    person.page.evaluate(
        "() => Object.defineProperty(document, 'visibilityState',"
        " {get: () => 'hidden', configurable: true})"
    )
    complete(here)
    expect(rail.toasts).to_contain_text(GOAL)
    remove(person, conversation)
    expect(rail.toasts).to_have_count(0)
    person.page.evaluate("() => delete document.visibilityState")
    complete(there)
    person.page.evaluate(LOOKED_AT_AGAIN)
    expect(rail.toasts).to_contain_text("Splice the rope.")


def test_a_job_half_written_in_a_removed_conversation_can_be_copied_and_not_started(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    rail.begin(GOAL)
    remove(person, conversation)
    expect(rail.goal).to_have_value(GOAL)
    expect(rail.goal).not_to_be_editable()
    expect(person.button("Start job")).to_be_disabled()
    expect(rail.problem).to_contain_text(GONE)
    rail.goal.press("Control+Enter")
    expect(rail.problem).to_contain_text(GONE)
    person.button("Discard").click()
    expect(rail.goal).to_be_hidden()
    kept = person.page.evaluate("() => JSON.stringify({...sessionStorage, ...localStorage})")
    assert GOAL not in kept


@pytest.mark.parametrize("width", [1200, 390])
def test_what_was_to_be_said_in_a_removed_conversation_can_be_copied_and_is_not_sent(
    person: Person, conversation: Conversation, width: int
) -> None:
    said(conversation, "Before", "Answered")
    TurnFactory.create(conversation=conversation)
    person.page.set_viewport_size({"width": width, "height": 800})
    person.open_conversation(conversation.pk)
    person.ask("Waits.")
    expect(person.unsent).to_contain_text("Waits for the answer before it.")
    person.box.fill("Half written")
    remove(person, conversation)
    expect(person.box).to_have_value("Waits.\n\nHalf written")
    expect(person.box).not_to_be_editable()
    expect(person.button("Send")).to_be_disabled()
    expect(person.unsent).to_have_count(0)
    expect(person.button("Stop")).to_be_hidden()
    expect(person.note("queued")).to_be_hidden()
    expect(person.questions.first).to_have_text("Before")
    for name in ("Correct your message", "Delete your message"):
        buttons = person.page.locator("#thread").get_by_label(name)
        expect(buttons.locator("visible=true")).to_have_count(0)
    person.box.press("Enter")
    expect(person.problem).to_be_empty()
    expect(person.box).to_have_value("Waits.\n\nHalf written")
    kept = person.page.evaluate("() => JSON.stringify({...sessionStorage, ...localStorage})")
    assert "Half written" not in kept
    assert "Waits." not in kept


def test_a_question_about_a_message_of_a_removed_conversation_is_withdrawn(
    person: Person, conversation: Conversation
) -> None:
    said(conversation, "Before", "Answered")
    person.open_conversation(conversation.pk)
    person.page.locator("#thread .question").hover()
    person.button("Delete your message").click()
    dialog = person.page.get_by_role("dialog", name="Delete this message?")
    expect(dialog).to_be_visible()
    remove(person, conversation)
    expect(dialog).to_be_hidden()


def test_nothing_reconnects_a_page_whose_conversation_was_removed(
    person: Person, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    person.page.evaluate(COUNT_CONNECTIONS)
    remove(person, conversation)
    person.page.evaluate(
        """() => {
            for (const name of ["offline", "online"]) dispatchEvent(new Event(name));
            dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true}));
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    person.expect_connection("gone")
    assert person.page.evaluate("() => window.connections") == 0


def test_a_job_that_vanishes_while_its_cancelling_is_asked_about_takes_the_question_along(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    routes: list[WebSocketRoute] = []

    def between(route: WebSocketRoute) -> None:
        route.connect_to_server()
        routes.append(route)

    running_job(conversation)
    person.page.route_web_socket("**/ws/conversations/**", between)
    person.open_conversation(conversation.pk)
    rail.card(GOAL).get_by_role("button", name="Cancel").click()
    dialog = person.page.get_by_role("dialog", name="Cancel this job?")
    expect(dialog).to_be_visible()
    without: dict[str, object] = {
        "type": "snapshot", "cursor": "", "messages": [], "next": None, "turn": None,
        "conversation": {"title": "Bells"}, "jobs": [],
    }  # fmt: skip
    routes[-1].send(json.dumps(without))
    expect(dialog).to_be_hidden()
    expect(rail.cards).to_have_count(0)
    expect(person.page.locator("#notice")).to_have_text(
        "This job was removed. There is nothing left to cancel."
    )
    expect(person.page.get_by_role("heading", name="Jobs", exact=True)).to_be_focused()
