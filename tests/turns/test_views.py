"""The page as it leaves the server, before any script runs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client

from tests.factories import ConversationFactory, MessageFactory, TurnFactory, UserFactory
from turns import pages, views
from turns.models import Conversation
from turns.panels import Panel, Panels

pytestmark = pytest.mark.django_db


@pytest.fixture
def user() -> User:
    return UserFactory.create()


@pytest.fixture
def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def ask(place: Conversation, question: str, answer: str) -> None:
    TurnFactory.create(
        conversation=place,
        user_message=MessageFactory.create(conversation=place, text=question),
        assistant_message=MessageFactory.create(conversation=place, answered=True, text=answer),
        completed=True,
    )


@pytest.mark.parametrize("path", ["/", "/new/", "/c/1/", "/c/1/messages/"])
def test_everything_asks_for_a_person(path: str) -> None:
    answer = Client().get(path)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/?next=/")


def test_the_messages_are_in_the_page_before_any_script_runs(
    browser: Client, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    ask(place, "<b>Why</b>?", "*Because*.")
    page = browser.get(f"/c/{place.pk}/").content.decode()
    assert "&lt;b&gt;Why&lt;/b&gt;?" in page
    assert "<em>Because</em>" in page
    assert "<b>Why" not in page


def test_what_scripts_are_told_cannot_end_its_element(browser: Client, user: User) -> None:
    place = ConversationFactory.create(owner=user)
    ask(place, "</script><script>alert(1)</script>", "<!--<script>")
    page = browser.get(f"/c/{place.pk}/").content.decode()
    told = re.search(r'<script id="told" type="application/json">(.*?)</script>', page)
    assert told is not None
    snapshot = json.loads(told[1])["snapshot"]
    assert [message["text"] for message in snapshot["messages"]] == [
        "<!--<script>",
        "</script><script>alert(1)</script>",
    ]


def test_nothing_in_the_page_is_inline(browser: Client, user: User) -> None:
    place = ConversationFactory.create(owner=user)
    ask(place, "?", "!")
    page = browser.get(f"/c/{place.pk}/")
    assert page["Content-Security-Policy"].startswith("default-src 'none'")
    assert page["Cache-Control"].startswith("max-age=0, no-cache, no-store")
    assert not re.search(
        r"<script(?![^>]* (src=|type=\"application/json\"))", str(page.content)
    )
    assert not re.search(r"\s(on[a-z]+|style)=", page.content.decode())


class Controls(HTMLParser):
    """Reads a page: each control a script has to listen to, and whether it waits for it."""

    NAMES = frozenset({"button", "input", "select", "textarea"})
    VOID = frozenset({"input", "link", "meta"})
    # what is there for scripts, or in place of them
    ELSEWHERE = frozenset({"dialog", "noscript", "template"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.around: list[tuple[str, dict[str, str | None]]] = []
        self.waiting: list[str] = []
        self.ready: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.around.append((tag, dict(attrs)))
        if tag in self.NAMES and not any(name in self.ELSEWHERE for name, _ in self.around):
            name = dict(attrs).get("id") or dict(attrs).get("data-do") or str(dict(attrs))
            waits = any(
                name == "fieldset"
                and "waits" in (given.get("class") or "")
                and "disabled" in given
                for name, given in self.around
            )
            (self.waiting if waits else self.ready).append(name)
        if tag in self.VOID:
            self.around.pop()

    def handle_endtag(self, tag: str) -> None:
        while self.around and self.around.pop()[0] != tag:
            pass


def test_every_control_waits_for_its_script_but_the_box_that_needs_none(
    browser: Client, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    ask(place, "?", "!")
    controls = Controls(browser.get(f"/c/{place.pk}/").content.decode())
    assert {"send", "stop", "open-drawer", "rename", "copy", "again", "new-job"} <= set(
        controls.waiting
    )
    # "Latest" is hidden until a script shows it
    assert [name for name in controls.ready if "csrf" not in name] == ["to-latest", "words"]


def test_older_messages_of_somebody_else_are_not_there(browser: Client, user: User) -> None:
    foreign = ConversationFactory.create()
    ask(foreign, "?", "!")
    mine = ConversationFactory.create(owner=user)
    ask(mine, "?", "!")
    newest = mine.messages.latest("pk").pk
    older = browser.get(f"/c/{mine.pk}/messages/", {"before": str(newest)}).json()
    assert [message["text"] for message in older["messages"]] == ["?"]
    assert older["next"] is None
    for place, before in ((foreign.pk, newest), ("x", newest), (mine.pk, "x"), (mine.pk, "")):
        assert browser.get(f"/c/{place}/messages/", {"before": before}).status_code == 404


def test_another_app_adds_its_panel(
    browser: Client, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = Panels()
    added.register(
        Panel(
            "errands", "errand", "'[]'::json",
            bar="turns/brand.html", template="turns/brand.html", aside="turns/brand.html",
            style="errands/errands.css", script="errands/errands.js", told={"most": 3},
        )
    )  # fmt: skip
    monkeypatch.setattr(views, "panels", added)
    page = browser.get(f"/c/{ConversationFactory.create(owner=user).pk}/").content.decode()
    told = '{"key": "errands", "script": "/static/errands/errands.js", "told": {"most": 3}}'
    assert f'"panels": [{told}]' in page
    assert page.count("brand-mark") == 5
    assert '<link rel="stylesheet" href="/static/errands/errands.css">' in page


def test_the_page_says_when_a_demonstration_model_answers(
    browser: Client, settings: Any
) -> None:
    for api, is_said in (("local", True), ("responses", False)):
        settings.LLM_API = api
        page = browser.get("/new/").content.decode()
        assert ("small demonstration model" in page) is is_said


@pytest.mark.parametrize("template", ["404.html", "500.html", "403_csrf.html"])
def test_the_refusals_need_nothing_to_be_rendered(template: str) -> None:
    assert "<h1>" in render_to_string(template)


def test_the_list_in_the_page_ends_where_the_api_goes_on(browser: Client, user: User) -> None:
    for _ in range(views.LISTED_CONVERSATIONS + 2):
        ConversationFactory.create(owner=user)
    page = browser.get("/new/").content.decode()
    place = re.search(r'data-next="([^"]+)"', page)
    assert place is not None
    since = pages.ConversationsBefore.parse(place[1])
    assert len(pages.conversations(user.pk, before=since, limit=100)) == 2
