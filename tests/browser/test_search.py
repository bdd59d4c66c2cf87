"""The search box: opened by a key, honest about what it did, and every result leads there."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Locator, Route, expect

from recovery.errors import ErrorCode
from semantic.embedders import factory
from tests.browser.person import Person
from tests.factories import ConversationFactory, MessageFactory, UserFactory
from tests.semantic.searching import derive
from turns.models import Conversation, Message

BOAT = "My boat is called Marguerite."


class SearchBox:
    """The dialog as a person sees it."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.page = person.page
        self.dialog = person.page.get_by_role("dialog", name="Search your messages")
        self.field = person.page.get_by_role("searchbox", name="What to look for")
        self.results = person.page.get_by_role("list", name="Messages found").get_by_role(
            "link"
        )
        self.state = person.page.locator("#search-state")
        self.problem = person.page.locator("#search-problem")
        self.honest = person.page.get_by_text("Only words were compared.")

    def look(self, query: str) -> None:
        if not self.dialog.is_visible():
            self.page.keyboard.press("Control+k")
        expect(self.field).to_be_focused()
        self.field.fill(query)


@pytest.fixture
def box(person: Person) -> SearchBox:
    return SearchBox(person)


def said(conversation: Conversation, *texts: str) -> list[Message]:
    return [MessageFactory.create(conversation=conversation, text=text) for text in texts]


def shown(person: Person, message: Message) -> Locator:
    return person.page.locator(f"#thread > [data-id='{message.pk}']")


def test_what_is_written_is_looked_for_and_the_words_are_marked(
    person: Person, box: SearchBox, conversation: Conversation, user: User
) -> None:
    said(conversation, BOAT, "Soup for dinner, please.")
    elsewhere = ConversationFactory.create(owner=user, title="Harbour")
    said(elsewhere, "The boat leaves at ten.")
    said(ConversationFactory.create(owner=UserFactory.create()), "A boat of somebody else.")
    derive(factory.from_settings())
    person.open_conversation(conversation.pk)
    person.button("Search").click()
    expect(box.field).to_be_focused()
    box.field.fill("boat")
    expect(box.results).to_have_count(2)
    expect(box.state).to_have_text("2 messages found, the best first.")
    expect(box.honest).to_be_hidden()
    expect(box.results.locator("mark")).to_have_text(["boat", "boat"])
    places = box.results.locator(".hit-where")
    assert sorted(places.all_inner_texts()) == ["Harbour", "In this conversation"]
    box.field.fill("zeppelin")
    expect(box.state).to_have_text("Nothing found for “zeppelin”.")
    expect(box.results).to_have_count(0)
    box.field.fill("")
    expect(box.state).to_be_empty()
    expect(box.dialog).to_contain_text("Only your own conversations are looked into.")


def test_it_says_that_only_words_were_compared_before_anything_is_derived(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    said(conversation, BOAT)
    person.open_conversation(conversation.pk)
    box.look("boat")
    expect(box.results).to_have_count(1)
    expect(box.honest).to_be_visible()
    expect(box.honest).to_contain_text("Nothing could be compared by meaning right now.")


def test_the_keys_open_it_walk_through_it_and_close_it(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    said(conversation, BOAT, "The boat leaves at ten.")
    person.open_conversation(conversation.pk)
    keys = person.page.keyboard
    # a slash is a slash where somebody writes
    person.box.press("/")
    expect(person.box).to_have_value("/")
    expect(box.dialog).to_be_hidden()
    person.button("Search").focus()
    keys.press("/")
    expect(box.field).to_be_focused()
    expect(box.field).to_have_value("")
    box.field.fill("boat")
    expect(box.results).to_have_count(2)
    keys.press("ArrowDown")
    expect(box.results.first).to_be_focused()
    keys.press("ArrowDown")
    expect(box.results.last).to_be_focused()
    keys.press("ArrowUp")
    keys.press("ArrowUp")
    expect(box.field).to_be_focused()
    keys.press("Escape")
    expect(box.dialog).to_be_hidden()
    expect(person.button("Search")).to_be_focused()
    keys.press("Meta+k")
    expect(box.field).to_have_value("boat")
    expect(box.results).to_have_count(2)


def test_a_result_leads_to_its_message_far_above_what_is_loaded(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    first, *_ = said(conversation, BOAT, *[f"Filling number {n}." for n in range(120)])
    person.open_conversation(conversation.pk)
    expect(shown(person, first)).to_have_count(0)
    box.look("marguerite")
    person.page.keyboard.press("Enter")
    expect(box.results).to_have_count(1)
    box.results.first.click()
    expect(box.dialog).to_be_hidden()
    expect(shown(person, first)).to_be_focused()
    expect(shown(person, first)).to_be_in_viewport()
    expect(shown(person, first)).to_have_attribute("data-led", "")
    # the page itself stays where it is
    expect(person.page.get_by_role("heading", level=1)).to_be_in_viewport()
    expect(person.page).to_have_url(re.compile(f"/c/{conversation.pk}/#m{first.pk}$"))
    person.box.focus()
    expect(shown(person, first)).not_to_have_attribute("data-led", "")


def test_a_result_elsewhere_opens_that_conversation_at_the_message(
    person: Person, box: SearchBox, conversation: Conversation, user: User
) -> None:
    elsewhere = ConversationFactory.create(owner=user, title="Harbour")
    first, *_ = said(elsewhere, BOAT, *[f"Filling number {n}." for n in range(120)])
    said(conversation, "Hello.")
    person.open_conversation(conversation.pk)
    box.look("marguerite")
    expect(box.results).to_have_count(1)
    person.page.keyboard.press("ArrowDown")
    person.page.keyboard.press("Enter")
    expect(person.page.get_by_role("heading", level=1)).to_have_text("Harbour")
    expect(shown(person, first)).to_be_focused()
    expect(shown(person, first)).to_be_in_viewport()
    # the address alone leads there too
    person.page.reload()
    expect(shown(person, first)).to_be_focused()


def test_a_message_that_was_removed_since_is_said_to_be_gone(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    _, gone, _ = said(conversation, "Hello.", BOAT, "Bye.")
    person.open_conversation(conversation.pk)
    box.look("marguerite")
    expect(box.results).to_have_count(1)
    person.page.goto("about:blank")
    address = f"/c/{conversation.pk}/#m{gone.pk}"
    gone.delete()
    person.open(address)
    expect(person.page.locator("#notice")).to_have_text("This message was removed.")


def test_an_answer_to_an_older_question_is_dropped_when_it_comes_late(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    said(conversation, BOAT, "Soup for dinner, please.")
    person.open_conversation(conversation.pk)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    person.page.route("**/api/v1/search?q=boat", hold)
    box.look("boat")
    expect(box.state).to_have_text("Searching …")
    expect(box.dialog).to_have_attribute("aria-busy", "true")
    box.field.fill("soup")
    expect(box.results).to_have_text([re.compile("Soup for dinner")])
    assert len(held) == 1
    with person.page.expect_response("**/api/v1/search?q=boat"):
        held[0].continue_()
    box.field.fill("soup dinner")
    expect(box.results).to_have_text([re.compile("Soup for dinner")])
    expect(box.dialog).to_have_attribute("aria-busy", "false")


def test_a_failed_search_says_so_and_enter_tries_again(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    said(conversation, BOAT)
    person.open_conversation(conversation.pk)
    person.page.route("**/api/v1/search?*", lambda route: route.abort(), times=1)
    box.look("boat")
    expect(box.problem).to_have_text(
        "The service cannot be reached right now. Press Enter to try again."
    )
    expect(box.state).to_be_empty()
    box.field.press("Enter")
    expect(box.results).to_have_count(1)
    expect(box.problem).to_be_empty()
    box.field.fill("é" * 300)
    expect(box.problem).to_have_text("This is too long by 88 bytes.")
    expect(box.field).to_have_attribute("aria-invalid", "true")
    box.field.fill("")
    box.field.press("Enter")
    expect(box.problem).to_have_text(str(ErrorCode.EMPTY_QUERY.label))


def test_on_a_phone_it_fills_the_width_and_stays_within_it(
    person: Person, box: SearchBox, conversation: Conversation
) -> None:
    said(conversation, f"{'Filling. ' * 60}{BOAT}{' Filling.' * 60}", f"boat{'x' * 700} boat")
    person.page.set_viewport_size({"width": 390, "height": 780})
    person.open_conversation(conversation.pk)
    person.button("Search").click()
    box.look("boat")
    expect(box.results).to_have_count(2)
    for place in (
        "documentElement",
        "querySelector('#search')",
        "querySelector('#search-hits')",
    ):
        assert person.page.evaluate(f"document.{place}.scrollWidth") <= 390
    room = box.dialog.bounding_box()
    assert room is not None
    assert (room["x"], room["width"]) == (0, 390)
    person.button("Close the search").click()
    expect(box.dialog).to_be_hidden()
