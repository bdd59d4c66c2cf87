"""What is shown of messages: safe, whole, and for everybody."""

from __future__ import annotations

from django.contrib.auth.models import User
from playwright.sync_api import Browser, expect

from tests.browser.conftest import session_of
from tests.browser.person import Person
from tests.browser.web import Web
from tests.factories import ConversationFactory, MessageFactory, TurnFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.worker import WorkerStarter
from turns.models import Conversation, Message

HOSTILE = """<script>document.title = "owned"</script>
<img src=x onerror="document.title = 'owned'">
<svg/onload=document.title='owned'>
[a](javascript:document.title='owned') [b](data:text/html,<script>alert(1)</script>)
![pixel](http://127.0.0.1:9/pixel.png) <a href="javascript:alert(1)">c</a>
<iframe srcdoc="<script>parent.document.title='owned'</script>"></iframe>
<style>body { display: none }</style> <form action="http://127.0.0.1:9/"><button>d</button></form>
</div></li></ol><h1 id="title">owned</h1>
"""


def said(conversation: Conversation, question: str, text: str) -> Message:
    """Return a finished answer."""
    asked = MessageFactory.create(conversation=conversation, text=question)
    answered = MessageFactory.create(conversation=conversation, answered=True, text=text)
    TurnFactory.create(
        conversation=conversation,
        user_message=asked,
        assistant_message=answered,
        completed=True,
    )
    return answered


def test_markup_from_a_model_or_a_person_is_inert(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    foreign: list[str] = []
    person.page.on("request", lambda request: foreign.append(request.url))
    model.script(stalled(HOSTILE))
    start_worker()
    person.open("/new/")
    person.ask(HOSTILE)
    person.expect_text(HOSTILE)
    model.release("answer")
    person.expect_look("complete")
    for _ in range(2):
        expect(person.questions).to_have_text([HOSTILE])
        inside = person.page.locator("#view")
        for element in ("script", "img", "iframe", "style", "form", "h1", "[onerror]"):
            expect(inside.locator(element)).to_have_count(0)
        links = inside.locator("#thread a")
        expect(links).to_have_count(1)
        expect(links).to_have_attribute("href", "http://127.0.0.1:9/pixel.png")
        expect(links).to_have_attribute("rel", "noopener noreferrer nofollow")
        expect(person.page).not_to_have_title("owned")
        person.page.reload()
    own = (f"{person.url}/", f"{person.url.replace('http', 'ws')}/")
    assert [url for url in foreign if not url.startswith(own)] == []


def test_a_script_written_into_the_page_would_not_run(person: Person) -> None:
    person.open("/new/")
    person.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
        }"""
    )
    expect(person.page).to_have_title("New conversation · Holdfast")
    assert "Content Security Policy" in person.errors.pop()


def test_markdown_is_rendered_at_the_end_and_code_can_be_copied(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    person.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "**Hold** fast:\n\n```python\ndef hold():\n    return 1\n```\n"
    model.script(stalled(text))
    start_worker()
    person.open("/new/")
    person.ask("?")
    person.expect_text(text)
    model.release("answer")
    expect(person.answers.locator("strong")).to_have_text("Hold")
    code = person.page.locator(".code")
    expect(code).to_contain_text("python")
    for button, copied in (
        (code.get_by_role("button", name="Copy this code"), "def hold():\n    return 1\n"),
        (person.button("Copy the answer"), text),
    ):
        button.click()
        expect(button).to_have_attribute("data-done", "")
        assert person.page.evaluate("() => navigator.clipboard.readText()") == copied


def test_older_messages_come_on_scroll_each_once_and_in_order(
    person: Person, user: User
) -> None:
    place = ConversationFactory.create(owner=user)
    for number in range(60):
        said(place, f"Question {number}", f"Answer {number}")
    person.open_conversation(place.pk)
    expect(person.answers.last).to_be_in_viewport()
    for number in (30, 15, 0):
        person.questions.first.scroll_into_view_if_needed()
        expect(person.questions.filter(has_text=f"Question {number}").first).to_be_attached()
    expect(person.questions).to_have_text([f"Question {n}" for n in range(60)])
    expect(person.answers).to_have_text([f"Answer {n}" for n in range(60)])
    person.button("Latest").click()
    expect(person.answers.last).to_be_in_viewport()


def test_an_answer_too_large_for_a_frame_is_shown_whole(person: Person, user: User) -> None:
    place = ConversationFactory.create(owner=user)
    text = "\u2603 *x* " * 8_000
    said(place, "Long?", text)
    person.open_conversation(place.pk)
    expect(person.answers.locator("em")).to_have_count(8_000)


def test_a_finished_answer_is_said_once_and_its_words_are_not(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("Word by word."))
    start_worker()
    person.open("/new/")
    person.ask("?")
    person.expect_text("Word by word.")
    expect(person.spoken).to_be_empty()
    expect(person.page.locator("[aria-live]:has(#thread), #thread[aria-live]")).to_have_count(0)
    model.release("answer")
    expect(person.spoken).to_have_text("Answer: Word by word.")


def test_everything_can_be_done_with_the_keyboard(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("First."), answer("Second."))
    start_worker()
    person.open("/new/")
    keyboard = person.page.keyboard
    expect(person.box).to_be_focused()
    keyboard.type("Line one")
    keyboard.press("Shift+Enter")
    keyboard.type("line two")
    keyboard.press("Enter")
    expect(person.questions).to_have_text(["Line one\nline two"])
    person.expect_text("First.")
    keyboard.press("Tab")
    expect(person.button("Stop")).to_be_focused()
    keyboard.press("Enter")
    person.expect_look("cancelled")
    expect(person.box).to_be_focused()
    for _ in range(2):
        keyboard.press("Shift+Tab")
    expect(person.button("Send again")).to_be_focused()
    keyboard.press("Enter")
    expect(person.answers).to_have_text(["First.", "Second."])
    expect(person.box).to_be_focused()
    person.page.reload()
    person.page.locator("body").press("Home")


def test_the_list_is_a_drawer_on_a_phone_and_nothing_is_wider_than_the_screen(
    web: Web, chromium: Browser, user: User
) -> None:
    place = ConversationFactory.create(owner=user, title="A" * 80)
    said(
        place, "W" * 300, "| a | b |\n| - | - |\n| " + "x" * 300 + " | y |\n\n    " + "c" * 300
    )
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True
    )
    context.add_cookies([session_of(user, web.url)])
    person = Person(context.new_page(), web.url)
    person.open_conversation(place.pk)
    width = person.page.evaluate("() => document.documentElement.scrollWidth")
    inside = person.page.evaluate("() => document.getElementById('view').scrollWidth")
    assert (width, inside) == (390, 390)
    listed = person.page.get_by_role("link", name="A" * 80)
    expect(listed).to_be_hidden()
    person.button("Conversations").tap()
    expect(listed).to_be_in_viewport()
    expect(person.button("Close the list")).to_be_focused()
    person.page.keyboard.press("Escape")
    expect(listed).not_to_be_in_viewport()
    expect(person.button("Conversations")).to_be_focused()
    assert person.errors == []
    context.close()
