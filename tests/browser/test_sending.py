"""The message box: never blocked, emptied at once, and nothing is asked twice or lost."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Route, expect

from recovery.blanks import shows_something
from tests.browser.person import Person
from tests.browser.web import Web
from tests.factories import ConversationFactory
from turns import bounds
from turns.models import Conversation, Message, Turn
from turns.transitions import delete_conversation


def test_a_double_submit_asks_once(person: Person) -> None:
    person.open("/new/")
    person.box.fill("Only once")
    for _ in range(2):
        person.box.press("Enter", no_wait_after=True)
    person.page.locator("#send").dblclick()
    expect(person.questions).to_have_text(["Only once"])
    person.expect_look("queued")
    assert Turn.objects.count() == 1
    assert Conversation.objects.count() == 1


@pytest.mark.parametrize("unseen", [" ", "\u200b", "\u3164", "\ufe0f\u034f \u2800"])
def test_what_nobody_sees_is_not_sent(person: Person, unseen: str) -> None:
    person.open("/new/")
    person.ask(unseen)
    expect(person.problem).to_have_text("Write something first.")
    assert not Conversation.objects.exists()


def test_the_page_and_the_service_agree_on_what_shows_something(person: Person) -> None:
    person.open("/new/")
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0xE0000, 0xE1000)]
    module = person.page.locator("link[href*='turns/blanks']").get_attribute("href")
    seen = person.page.evaluate(
        """async ([module, codes]) => {
            const { showsSomething } = await import(module);
            return codes.filter((code) => showsSomething(String.fromCodePoint(code)));
        }""",
        [module, codes],
    )
    differ = set(seen) ^ {code for code in codes if shows_something(chr(code))}
    assert not [hex(code) for code in sorted(differ)]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_message_survives_a_lost_network_and_is_asked_once(person: Person, lost: str) -> None:
    taken: list[Route] = []

    def lose(route: Route) -> None:
        if lost == "answer":
            route.fetch()
        taken.append(route)
        route.abort()

    person.page.route("**/turns", lose, times=2)
    person.open("/new/")
    with person.page.expect_response(lambda answer: answer.url.endswith("/turns")) as last:
        person.ask("Once, please")
        expect(person.box).to_have_value("")
    assert last.value.status == (202 if lost == "request" else 200)
    person.expect_look("queued")
    expect(person.questions).to_have_text(["Once, please"])
    expect(person.unsent).to_have_count(0)
    assert len(taken) == 2
    assert Turn.objects.count() == 1


def test_a_message_is_sent_once_though_the_page_is_reloaded_before_its_acceptance(
    person: Person, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    person.open_conversation(place.pk)

    def never_answer(route: Route) -> None:
        route.fetch()

    person.page.route("**/turns", never_answer)
    person.ask("Once")
    expect(person.questions).to_have_text(["Once"])
    person.page.unroute_all(behavior="ignoreErrors")
    person.page.reload()
    person.expect_look("queued")
    expect(person.questions).to_have_text(["Once"])
    expect(person.unsent).to_have_count(0)
    assert Turn.objects.count() == 1


def test_what_the_service_refuses_comes_back_with_the_reason(
    person: Person, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    person.open_conversation(place.pk)
    person.ask("Broken \u0000 text")
    expect(person.problem).to_have_text("The text holds characters that cannot be stored.")
    expect(person.box).to_have_value("Broken \u0000 text")
    expect(person.unsent).to_have_count(0)
    person.box.press("End")
    person.box.press("Backspace")
    expect(person.problem).to_be_empty()
    assert not Message.objects.exists()


def test_a_blank_message_shows_an_error_beside_the_box(person: Person) -> None:
    person.open("/new/")
    person.ask("  \n ")
    expect(person.problem).to_have_text("Write something first.")
    expect(person.box).to_be_focused()
    assert not Conversation.objects.exists()


def test_a_message_that_is_too_long_stays_in_the_box(person: Person) -> None:
    person.open("/new/")
    text = "é" * (bounds.USER_MESSAGE_MAX_BYTES // 2 + 1)
    person.ask(text)
    expect(person.problem).to_have_text("This is too long by 2 bytes.")
    expect(person.box).to_have_value(text)
    person.box.press("Backspace")
    person.box.press("Enter")
    expect(person.questions).to_have_count(1)


def test_each_conversation_keeps_its_own_draft(person: Person, user: User) -> None:
    one, two = (ConversationFactory.create(owner=user, title=title) for title in "AB")
    person.open_conversation(one.pk)
    person.box.fill("A thought")
    person.open_conversation(two.pk)
    expect(person.box).to_have_value("")
    person.open_conversation(one.pk)
    expect(person.box).to_have_value("A thought")
    person.ask("A thought")
    person.expect_look("queued")
    person.page.reload()
    expect(person.box).to_have_value("")


def test_drafts_do_not_stay_for_the_next_person(person: Person) -> None:
    person.open("/new/")
    person.box.fill("Private")
    person.button("Sign out").click()
    expect(person.button("Sign in")).to_be_visible()
    assert person.page.context.storage_state()["origins"] == []


def test_a_page_whose_conversation_is_gone_says_so_and_leads_on(
    person: Person, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    person.open_conversation(place.pk)
    delete_conversation(user.pk, place.pk)
    person.expect_connection("gone")
    person.page.get_by_role("link", name="To your conversations").click()
    expect(person.page.get_by_role("heading", name="Ask something")).to_be_visible()


def test_a_page_whose_person_was_signed_out_keeps_what_was_written(
    person: Person, user: User, web: Web
) -> None:
    place = ConversationFactory.create(owner=user)
    person.open_conversation(place.pk)
    user.set_password("another")
    user.save()
    person.expect_connection("signed-out")
    person.ask("Do not lose me")
    expect(person.unsent).to_contain_text("Do not lose me")
    person.page.get_by_role("link", name="Sign in").click()
    person.page.get_by_label("Name").fill(user.username)
    person.page.get_by_label("Password").fill("another")
    person.button("Sign in").click()
    expect(person.questions).to_have_text(["Do not lose me"])
