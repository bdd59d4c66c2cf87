"""A long list of conversations is in nobody's way: the keyboard skips it."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_jobs import GOAL, running_job
from tests.browser.test_reading import said
from tests.factories import ConversationFactory
from turns.models import Conversation


def skip(person: Person, name: str) -> Locator:
    """Go to this link by the keyboard, from the beginning of the page."""
    link = person.page.get_by_role("link", name=name, exact=True)
    expect(link).to_be_attached()
    expect(link).not_to_be_in_viewport()
    # in the order of the page, whatever stands before them
    person.page.locator(".skip").first.focus()
    for _ in range(2):
        if link.evaluate("link => link === document.activeElement"):
            break
        person.page.keyboard.press("Tab")
    expect(link).to_be_focused()
    expect(link).to_be_in_viewport(ratio=1)
    return link


def test_the_jobs_are_reached_by_the_keyboard_without_the_list_of_conversations(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    for number in range(40):
        ConversationFactory.create(owner=conversation.owner, title=f"Number {number}")
    running_job(conversation)
    person.open_conversation(conversation.pk)
    expect(rail.card(GOAL)).to_be_visible()
    title = person.page.get_by_role("heading", name="Jobs", exact=True)
    # beside the messages, and where they were closed
    for is_closed in (False, True):
        if is_closed:
            person.page.get_by_role("button", name="Jobs, 1 at work").click()
            expect(rail.rail).to_be_hidden()
        skip(person, "Skip to the jobs").press("Enter")
        expect(rail.rail).to_be_visible()
        expect(title).to_be_focused()
        person.page.keyboard.press("Tab")
        expect(person.button("New job")).to_be_focused()
    person.page.keyboard.press("Tab")
    expect(rail.card(GOAL).get_by_role("button", name="Cancel")).to_be_focused()


def test_on_a_phone_the_keyboard_skips_to_the_drawer_of_jobs(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.page.set_viewport_size({"width": 390, "height": 780})
    person.open_conversation(conversation.pk)
    skip(person, "Skip to the jobs").press("Enter")
    expect(person.page.get_by_role("heading", name="Jobs", exact=True)).to_be_focused()
    person.page.keyboard.press("Escape")
    expect(rail.rail).to_be_hidden()


def test_the_messages_are_reached_by_the_keyboard_without_the_list_of_conversations(
    person: Person, conversation: Conversation
) -> None:
    said(conversation, "Before", "Answered")
    person.open_conversation(conversation.pk)
    skip(person, "Skip to the messages").press("Enter")
    expect(person.page.get_by_role("region", name="Messages")).to_be_focused()
    person.page.keyboard.press("Tab")
    button = person.page.locator("#thread .question").get_by_role("button").first
    expect(button).to_be_focused()
