"""What can be pressed before the page's scripts run: nothing that would then do nothing."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Locator, Route, expect

from recovery.errors import ErrorCode
from tests.browser.conftest import session_of
from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_reading import said
from tests.browser.web import Web
from tests.factories import WorkJobFactory, fence_of
from turns.models import Conversation
from work.models import WorkJob
from work.transitions import finish_job

PAGE = re.compile(r"/static/turns/page(\.\w+)?\.js")
PANEL = re.compile(r"/static/work/jobs(\.\w+)?\.js")


class SlowLine:
    """A line on which one script does not arrive until it is let through."""

    def __init__(self, person: Person, script: re.Pattern[str]) -> None:
        self.person = person
        self.held: list[Route] = []
        self.is_slow = True
        person.page.route(script, self._hold)

    def _hold(self, route: Route) -> None:
        if self.is_slow:
            self.held.append(route)
        else:
            route.continue_()

    def open(self, path: str) -> None:
        """Open a page, and look at it before the script is there."""
        self.person.page.goto(self.person.url + path, wait_until="commit")
        expect(self.person.button("Send")).to_be_visible()

    def arrive(self) -> None:
        """Let the script come."""
        assert self.held
        self.is_slow = False
        for route in self.held:
            route.continue_()


def press(control: Locator) -> None:
    """Press it as somebody does who does not know that it waits, by mouse and by keyboard."""
    expect(control).to_be_disabled()
    control.click(force=True)
    control.focus()
    control.page.keyboard.press("Enter")


def test_what_is_pressed_before_the_scripts_run_takes_nothing_away_and_works_once_they_do(
    person: Person, rail: JobsRail
) -> None:
    line = SlowLine(person, PAGE)
    line.open("/new/")
    person.box.fill("Written early")
    for name in ("Jobs", "Send", "Sign out", "Give me three ideas for dinner"):
        press(person.button(name))
    expect(person.page).to_have_url(f"{person.url}/new/")
    expect(person.box).to_have_value("Written early")
    line.arrive()
    person.button("Jobs").click()
    expect(rail.rail).to_be_visible()
    person.button("New job").click()
    expect(rail.goal).to_be_focused()
    person.button("Send").click()
    expect(person.questions).to_have_text(["Written early"])


def test_a_suggestion_pressed_early_is_taken_once_the_scripts_run(person: Person) -> None:
    line = SlowLine(person, PAGE)
    line.open("/new/")
    suggestion = person.button("Give me three ideas for dinner")
    press(suggestion)
    line.arrive()
    suggestion.click()
    expect(person.box).to_have_value("Give me three ideas for dinner")


def test_messages_and_the_list_wait_for_the_scripts_too(
    person: Person, conversation: Conversation
) -> None:
    said(conversation, "Why?", "Because.")
    person.page.set_viewport_size({"width": 390, "height": 780})
    line = SlowLine(person, PAGE)
    line.open(f"/c/{conversation.pk}/")
    waiting = person.page.locator("#thread button, #conversations button")
    for button in waiting.all():
        expect(button).to_be_disabled()
    press(person.button("Conversations"))
    line.arrive()
    person.button("Conversations").click()
    expect(person.button("Close the list")).to_be_focused()
    person.button("Rename “Bells”").focus()
    person.page.keyboard.press("Enter")
    expect(person.page.get_by_label("New name")).to_be_focused()
    person.page.keyboard.press("Escape")
    person.button("Close the list").click()
    person.questions.click()
    person.button("Correct your message").click()
    expect(person.page.get_by_label("Your words, corrected")).to_have_value("Why?")


def test_a_panel_whose_script_is_late_waits_alone_and_nothing_pressed_is_lost(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = WorkJobFactory.create(
        person=conversation.owner, conversation=conversation, running=True
    )
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
    line = SlowLine(person, PANEL)
    line.open(f"/c/{conversation.pk}/")
    expect(person.button("Send")).to_be_enabled()
    press(person.button("Jobs"))
    # what is pressed in the page's own part is done when the panel is there
    rail.reports.get_by_role("button", name="Start again").click()
    assert WorkJob.objects.count() == 1
    line.arrive()
    expect(rail.cards).to_have_count(2)
    expect(person.button("Jobs, 1 at work")).to_be_enabled()


def test_a_panel_that_cannot_be_loaded_leaves_no_button_that_does_nothing(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = WorkJobFactory.create(
        person=conversation.owner, conversation=conversation, running=True
    )
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
    person.page.route(PANEL, lambda route: route.abort())
    person.open_conversation(conversation.pk)
    notice = person.page.locator("#notice")
    expect(notice).to_have_text(
        "A part of this page could not be loaded. Reload it to try again."
    )
    expect(person.button("Jobs")).to_be_disabled()
    person.page.evaluate("() => { document.getElementById('notice').hidden = true; }")
    rail.reports.get_by_role("button", name="Start again").click()
    expect(notice).to_be_visible()
    assert "dynamically imported module" in person.errors.pop()


def test_a_page_without_scripts_says_so_and_lets_its_person_read_and_leave(
    web: Web, chromium: Browser, conversation: Conversation
) -> None:
    said(conversation, "Why?", "Because.")
    context = chromium.new_context(java_script_enabled=False)
    context.add_cookies([session_of(conversation.owner, web.url)])
    person = Person(context.new_page(), web.url)
    person.open(f"/c/{conversation.pk}/")
    expect(person.answers).to_have_text(["Because."])
    # not by what they say: in there Playwright reads no text
    expect(person.page.locator("noscript p")).to_be_visible()
    for control in person.page.locator(".waits button, #words").all():
        expect(control).to_be_hidden()
    person.page.locator("noscript button").click()
    expect(person.button("Sign in")).to_be_visible()
    context.close()
