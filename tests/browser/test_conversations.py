"""The list of conversations, one's own words, and the door."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.test_reading import said
from tests.browser.web import Web
from tests.factories import ConversationFactory, UserFactory
from turns.models import Conversation, Message


def test_the_page_opens_with_the_conversation_that_was_active_last(
    person: Person, user: User
) -> None:
    for title in ("Earlier", "Later"):
        said(ConversationFactory.create(owner=user, title=title), "?", title)
    person.open("/")
    expect(person.page.get_by_role("heading", level=1)).to_have_text("Later")
    expect(person.page.locator(".conversation-name")).to_have_text(["Later", "Earlier"])
    person.page.get_by_role("link", name="Earlier").click()
    expect(person.answers).to_have_text(["Earlier"])
    person.page.get_by_role("link", name="New conversation").first.click()
    expect(person.page.get_by_role("heading", name="Ask something")).to_be_visible()


def test_a_conversation_is_renamed_in_place(person: Person, user: User) -> None:
    place = ConversationFactory.create(owner=user, title="Old")
    person.open_conversation(place.pk)
    person.button("Rename “Old”").focus()
    person.page.keyboard.press("Enter")
    field = person.page.get_by_label("New name")
    expect(field).to_be_focused()
    field.fill("<b>New</b>")
    field.press("Enter")
    expect(person.page.get_by_role("heading", level=1)).to_have_text("<b>New</b>")
    expect(person.button("Rename “<b>New</b>”")).to_be_attached()
    person.button("Rename “<b>New</b>”").focus()
    person.page.keyboard.press("Enter")
    field.fill("Never mind")
    field.press("Escape")
    person.page.reload()
    expect(person.page.locator(".conversation-name")).to_have_text(["<b>New</b>"])


def test_a_conversation_is_deleted_only_when_the_person_says_yes(
    person: Person, user: User
) -> None:
    kept, gone = (ConversationFactory.create(owner=user, title=t) for t in ("Kept", "Gone"))
    person.open_conversation(gone.pk)
    dialog = person.page.get_by_role("dialog")
    person.button("Delete “Gone”").focus()
    person.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("Gone")
    person.button("Keep it").click()
    expect(dialog).to_be_hidden()
    expect(person.button("Delete “Gone”")).to_be_focused()
    person.page.keyboard.press("Enter")
    person.button("Delete").click()
    expect(person.page).to_have_url(re.compile(f"/c/{kept.pk}/$"))
    expect(person.page.locator(".conversation-name")).to_have_text(["Kept"])
    assert list(Conversation.objects.values_list("title", flat=True)) == ["Kept"]


def test_a_long_list_comes_on_scroll(person: Person, user: User) -> None:
    for number in range(120):
        ConversationFactory.create(owner=user, title=f"Number {number}")
    person.open("/")
    names = person.page.locator(".conversation-name")
    expect(names).to_have_count(50)
    # each page is asked for as its place comes near, which may be before one looks
    for count in (50, 100):
        expect(names.nth(count - 1)).to_be_attached()
        names.last.scroll_into_view_if_needed()
        end = person.page.locator("#list-end")
        if end.is_visible():
            end.scroll_into_view_if_needed()
    expect(names).to_have_text([f"Number {n}" for n in reversed(range(120))])


def test_ones_own_words_are_corrected_and_removed(person: Person, user: User) -> None:
    place = ConversationFactory.create(owner=user)
    said(place, "Whot is it?", "It is this.")
    said(place, "Secret 1234", "You said 1234.")
    person.open_conversation(place.pk)
    first, second = (person.page.locator("#thread .question").nth(n) for n in range(2))
    first.hover()
    first.get_by_role("button", name="Correct your message").click()
    field = person.page.get_by_label("Your words, corrected")
    field.fill("What is it?")
    person.button("Save").click()
    expect(person.questions.first).to_have_text("What is it?")
    expect(first).to_contain_text("edited")
    second.hover()
    second.get_by_role("button", name="Delete your message").click()
    person.button("Delete").click()
    expect(person.questions).to_have_text(["What is it?"])
    expect(person.answers).to_have_text(["It is this."])
    person.page.reload()
    expect(person.questions).to_have_text(["What is it?"])
    assert not Message.objects.filter(text__contains="1234").exists()


def test_foreign_and_unknown_conversations_look_the_same(person: Person) -> None:
    foreign = ConversationFactory.create(owner=UserFactory.create(), title="Private")
    seen = []
    for number in (foreign.pk, foreign.pk + 1_000, "x", 10**30):
        person.open(f"/c/{number}/")
        expect(person.page.get_by_role("heading")).to_have_text("Nothing here")
        seen.append(person.page.content())
    assert len(set(seen)) == 1
    assert "Private" not in seen[0]


def test_one_signs_in_and_comes_back_to_where_one_was(
    person: Person, user: User, web: Web
) -> None:
    user.set_password("a long secret")
    user.save()
    person.page.context.clear_cookies()
    place = ConversationFactory.create(owner=user, title="Mine")
    person.open(f"/c/{place.pk}/")
    name, password = person.page.get_by_label("Name"), person.page.get_by_label("Password")
    name.fill("ada")
    password.fill("wrong")
    password.press("Enter")
    expect(person.page.get_by_role("alert")).to_contain_text("do not belong together")
    expect(name).to_have_value("ada")
    password.fill("a long secret")
    password.press("Enter")
    expect(person.page.get_by_role("heading", level=1)).to_have_text("Mine")
