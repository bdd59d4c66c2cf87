"""The jobs beside a conversation, as a person sees and uses them."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.browser.person import Person


class JobsRail:
    """The rail of one page."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.page = person.page
        self.rail = self.page.locator("#jobs")

    def open(self) -> None:
        """Open the rail, if it is closed."""
        if not self.rail.is_visible():
            self.page.get_by_role("button", name=re.compile("^Jobs")).click()
        expect(self.rail).to_be_visible()

    def begin(self, goal: str = "") -> None:
        """Open the form for a job, and write its goal."""
        self.open()
        self.person.button("New job").click()
        self.goal.fill(goal)

    def start(self, goal: str) -> None:
        """Ask for deep work by the form."""
        self.begin(goal)
        self.person.button("Start job").click()

    @property
    def goal(self) -> Locator:
        return self.page.get_by_label("Goal", exact=True)

    @property
    def problem(self) -> Locator:
        return self.page.locator("#job-problem")

    @property
    def cards(self) -> Locator:
        return self.rail.locator(".job")

    def card(self, goal: str) -> Locator:
        """The card of the job with this goal."""
        return self.cards.filter(has=self.page.get_by_text(goal, exact=True))

    def expect_look(self, card: Locator, look: str) -> None:
        """Fail unless the job becomes such a one."""
        expect(card).to_have_attribute("data-look", look)

    @property
    def toasts(self) -> Locator:
        return self.page.locator("#toasts .toast")

    @property
    def reports(self) -> Locator:
        """The messages that report on jobs."""
        return self.page.locator("#thread .answer[data-about=job]")
