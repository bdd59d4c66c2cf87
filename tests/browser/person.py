"""What a person sees on the page and does with it."""

from __future__ import annotations

import re

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

# Chromium reports each failed request; what the page makes of it is what is tested.
NETWORK = re.compile(r"Failed to load resource|WebSocket connection to")


class Person:
    """Somebody in front of one page."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not NETWORK.search(message.text):
            self.errors.append(message.text)

    def open(self, path: str = "/") -> None:
        """Open a page of ours."""
        self.page.goto(self.url + path)

    def open_conversation(self, conversation_id: int) -> None:
        """Open a conversation and wait until it is live."""
        self.open(f"/c/{conversation_id}/")
        self.expect_connection("live")

    def ask(self, text: str) -> None:
        """Write a message and press Enter."""
        self.box.fill(text)
        self.box.press("Enter")

    @property
    def box(self) -> Locator:
        return self.page.get_by_label("Your message", exact=True)

    @property
    def questions(self) -> Locator:
        return self.page.locator("#thread .question .words")

    @property
    def answers(self) -> Locator:
        return self.page.locator("#thread .answer .words")

    @property
    def problem(self) -> Locator:
        return self.page.locator("#problem")

    @property
    def spoken(self) -> Locator:
        """What a screen reader is told."""
        return self.page.locator("#announcer")

    @property
    def unsent(self) -> Locator:
        return self.page.locator("#pending .message")

    def expect_text(self, text: str) -> None:
        """Fail unless the last answer becomes this text, to the last space."""
        expect(self.answers.last).to_have_js_property("textContent", text)

    def note(self, look: str) -> Locator:
        """What the page says of answers that look like this."""
        return self.page.locator(f"#thread [data-look={look}] > [data-for={look}]")

    def expect_look(self, look: str) -> None:
        """Fail unless the last answer becomes such a one."""
        expect(self.page.locator("#thread .answer").last).to_have_attribute("data-look", look)

    def expect_connection(self, state: str) -> None:
        """Fail unless the page says so of its connection."""
        expect(self.page.locator("#connection")).to_have_attribute("data-state", state)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)
