"""A message far up is shown at once, with what stands around it; the end goes on meanwhile."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Request, Route, expect

from tests.browser.person import Person
from tests.factories import MessageFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled
from tests.support.worker import WorkerStarter
from turns.models import Conversation, Message
from turns.transitions import edit_message

WORD = "Marguerite"
NUMBER = re.compile(r"Message (\d+)\.")


def numbered(conversation: Conversation, numbers: range, *, named: int = -1) -> list[Message]:
    """Write messages with these numbers, one of which is to be found by its name."""
    return Message.objects.bulk_create(
        MessageFactory.build(
            conversation=conversation,
            text=f"Message {number}.{f' My boat is called {WORD}.' if number == named else ''}",
        )
        for number in numbers
    )


def fill(conversation: Conversation, count: int, *, named: int) -> Message:
    """Write `count` numbered messages; return the one that is to be found by its name."""
    return numbered(conversation, range(count), named=named)[named]


class Reader:
    """Somebody who reads, and what their page asks for meanwhile."""

    def __init__(self, person: Person) -> None:
        self.person = person
        self.page = person.page
        self.asked: list[str] = []
        self.page.on("request", self._hear)
        self.messages = self.page.locator("#thread > .message .words")
        self.latest = person.button("Latest")
        self.news = person.button("New messages")
        self.notice = self.page.locator("#notice")

    def _hear(self, request: Request) -> None:
        _, _, query = request.url.partition("/messages/?")
        if query:
            self.asked.append(query)

    def look_for(self, word: str) -> None:
        """Search, and choose the first result."""
        self.page.keyboard.press("Control+k")
        self.page.get_by_role("searchbox").fill(word)
        self.page.keyboard.press("Enter")
        results = self.page.get_by_role("list", name="Messages found").get_by_role("link")
        expect(results).to_have_count(1)
        results.click()

    def led_up(self, conversation: Conversation, count: int, *, named: int) -> Message:
        """Open a conversation of `count` numbered messages, and be led to the one named."""
        found = fill(conversation, count, named=named)
        self.person.open_conversation(conversation.pk)
        self.look_for(WORD)
        self.expect_led_to(found)
        return found

    def message(self, message: Message) -> Locator:
        return self.page.locator(f"#thread > [data-id='{message.pk}']")

    def expect_led_to(self, message: Message) -> None:
        expect(self.message(message)).to_be_focused()
        expect(self.message(message)).to_be_in_viewport()
        expect(self.message(message)).to_have_attribute("data-led", "")

    def expect_number(self, number: int) -> None:
        """Fail unless this message comes to be loaded."""
        text = re.compile(rf"^Message {number}\.")
        expect(self.messages.filter(has_text=text)).to_be_attached()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the messages that are shown, as they follow one another."""
        texts = self.messages.all_text_contents()
        found = [NUMBER.match(text) for text in texts]
        return [int(number[1]) for number in found if number]

    def expect_no_gap(self) -> None:
        numbers = self.numbers
        assert numbers == list(range(numbers[0], numbers[-1] + 1))


@pytest.fixture
def reader(person: Person) -> Reader:
    return Reader(person)


def test_a_message_three_thousand_up_is_there_after_one_request_and_both_ways_lead_on(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    found = reader.led_up(conversation, 3_100, named=99)
    assert reader.asked == [f"around={found.pk}"]
    assert reader.numbers == list(range(70, 130))
    reader.messages.first.scroll_into_view_if_needed()
    reader.expect_number(40)
    reader.messages.last.scroll_into_view_if_needed()
    reader.expect_number(159)
    reader.expect_no_gap()
    for _ in range(2):
        reader.messages.first.scroll_into_view_if_needed()
        reader.expect_number(max(reader.numbers[0] - 30, 0))
    reader.expect_number(0)
    reader.expect_no_gap()
    # what leads there is the address, so it does after a reload too
    person.page.reload()
    del reader.asked[:]
    reader.expect_led_to(found)
    assert reader.asked in ([], [f"around={found.pk}"])


def test_back_at_the_newest_what_happens_is_followed_again(
    reader: Reader,
    person: Person,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    reader.led_up(conversation, 300, named=20)
    reader.latest.click()
    expect(person.box).to_be_focused()
    expect(reader.latest).to_be_hidden()
    expect(reader.messages.last).to_be_in_viewport()
    assert reader.numbers == list(range(250, 300))
    model.script(answer("Long " * 500, "and last."))
    start_worker()
    person.ask("And now?")
    person.expect_look("complete")
    expect(person.answers.last.get_by_text("and last.")).to_be_in_viewport(ratio=0.01)
    # there, the past is loaded as ever
    reader.messages.first.scroll_into_view_if_needed()
    reader.expect_number(220)
    reader.expect_no_gap()


def test_what_happens_meanwhile_is_not_lost_and_seems_to_follow_nothing_further_up(
    reader: Reader,
    person: Person,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    found = fill(conversation, 300, named=20)
    model.script(stalled("Word by "), answer("word again."))
    start_worker()
    person.open_conversation(conversation.pk)
    person.ask("Begin.")
    person.expect_text("Word by ")
    reader.look_for(WORD)
    reader.expect_led_to(found)
    model.release("answer")
    # it has come here, though it is not shown here
    expect(person.spoken).to_have_text("Answer: Word by ")
    # somebody asks from elsewhere
    other = person.page.context.new_page()
    elsewhere = Person(other, person.url)
    elsewhere.open_conversation(conversation.pk)
    elsewhere.ask("From elsewhere.")
    expect(elsewhere.answers.last).to_have_text("word again.")
    expect(person.spoken).to_have_text("Answer: word again.")
    expect(reader.news).to_be_visible()
    expect(person.answers).to_have_count(0)
    reader.messages.last.scroll_into_view_if_needed()
    reader.expect_number(79)
    reader.expect_no_gap()
    expect(person.answers).to_have_count(0)
    # a lost connection in between changes nothing
    other.close()
    reader.news.click()
    expect(person.questions.last).to_have_text("From elsewhere.")
    expect(person.answers).to_have_text(["Word by ", "word again."])
    expect(person.answers.last).to_be_in_viewport()
    reader.expect_no_gap()
    assert reader.numbers[-1] == 299


def test_scrolled_down_to_the_end_it_is_the_end_again(
    reader: Reader,
    person: Person,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    found = reader.led_up(conversation, 200, named=80)
    reader.message(found).get_by_role("button", name="Correct your message").focus()
    for number in (139, 169, 199):
        reader.messages.last.scroll_into_view_if_needed()
        reader.expect_number(min(number, 199))
    # where it is joined together nobody loses their place
    expect(
        reader.message(found).get_by_role("button", name="Correct your message")
    ).to_be_focused()
    reader.expect_no_gap()
    reader.messages.last.scroll_into_view_if_needed()
    expect(reader.latest).to_be_hidden()
    model.script(answer("Here."))
    start_worker()
    person.ask("There?")
    expect(person.answers.last).to_have_text("Here.")
    expect(person.answers.last).to_be_in_viewport()
    assert reader.numbers[-1] == 199
    reader.messages.first.scroll_into_view_if_needed()
    reader.expect_number(21)
    reader.expect_no_gap()
    # messages further up than the first answer are still the person's own to correct
    reader.message(found).hover()
    reader.message(found).get_by_role("button", name="Copy your message").click()
    expect(reader.message(found).locator("[data-done]")).to_have_count(1)


def test_who_sends_is_led_to_the_end(
    reader: Reader,
    person: Person,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    reader.led_up(conversation, 300, named=20)
    model.script(answer("Marguerite."))
    start_worker()
    person.ask("What was her name?")
    expect(person.answers.last).to_have_text("Marguerite.")
    expect(person.answers.last).to_be_in_viewport()
    expect(reader.latest).to_be_hidden()
    expect(person.unsent).to_have_count(0)
    assert reader.numbers == list(range(250, 300))


def test_one_result_after_another_is_shown_and_a_near_one_without_a_gap(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    near = fill(conversation, 300, named=235)
    far = conversation.messages.order_by("pk")[20]
    Message.objects.filter(pk=far.pk).update(text="Message 20. Her sister is Hortense.")
    person.open_conversation(conversation.pk)
    reader.look_for("hortense")
    reader.expect_led_to(far)
    reader.look_for(WORD)
    reader.expect_led_to(near)
    reader.expect_no_gap()
    # it is so near that what is loaded around it reaches the end
    assert reader.numbers[-1] == 299
    reader.look_for("hortense")
    reader.expect_led_to(far)
    reader.latest.click()
    reader.expect_no_gap()
    assert reader.numbers[-1] == 299


def test_a_message_that_is_gone_is_said_to_be_and_one_that_cannot_be_loaded_is_not(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    found = fill(conversation, 300, named=20)
    person.open_conversation(conversation.pk)
    person.page.route("**/messages/?around=*", lambda route: route.abort(), times=1)
    reader.look_for(WORD)
    expect(reader.notice).to_have_text(
        "The message could not be loaded. The service cannot be reached right now."
    )
    assert reader.numbers[-1] == 299
    reader.look_for(WORD)
    reader.expect_led_to(found)
    reader.latest.click()
    beside, gone = found.pk + 1, found.pk
    found.delete()
    person.page.evaluate(f"location.hash = 'm{beside}'")
    reader.expect_led_to(conversation.messages.get(pk=beside))
    person.page.evaluate(f"location.hash = 'm{gone}'")
    expect(reader.notice).to_have_text("This message was removed.")
    expect(reader.messages.filter(has_text="Message 21.")).to_be_in_viewport()


@pytest.mark.parametrize(("side", "asks"), [("older", "before"), ("newer", "after")])
def test_what_could_not_be_loaded_is_asked_for_again(
    reader: Reader, person: Person, conversation: Conversation, side: str, asks: str
) -> None:
    found = fill(conversation, 300, named=100)
    person.open_conversation(conversation.pk)
    person.page.route(f"**/messages/?{asks}=*", lambda route: route.abort(), times=1)
    reader.look_for(WORD)
    reader.expect_led_to(found)
    edge = reader.messages.first if side == "older" else reader.messages.last
    edge.scroll_into_view_if_needed()
    sign = person.page.locator(f"#{side}")
    expect(sign).to_contain_text("could not be loaded. The service cannot be reached")
    # nothing lies over it
    sign.get_by_role("button", name="Try again").click()
    reader.expect_number(41 if side == "older" else 159)
    expect(sign).to_be_empty()
    reader.expect_no_gap()


class Held:
    """One request for a page of messages, which is answered when the test says so."""

    def __init__(self, reader: Reader, asks: str) -> None:
        self.reader = reader
        self.address = f"**/messages/?{asks}=*"
        self.routes: list[Route] = []
        reader.page.route(self.address, self.hold, times=1)

    def hold(self, route: Route) -> None:
        self.routes.append(route)

    def wait_by_scrolling_to(self, edge: str) -> None:
        """Return when it is held."""
        with self.reader.page.expect_request(self.address):
            getattr(self.reader.messages, edge).scroll_into_view_if_needed()

    def answer(self) -> None:
        with self.reader.page.expect_response(self.address):
            self.routes[0].continue_()


def test_older_messages_that_come_late_are_put_where_they_belong(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    """They were asked for at the end and come when something else is shown."""
    found = fill(conversation, 300, named=20)
    person.open_conversation(conversation.pk)
    held = Held(reader, "before")
    held.wait_by_scrolling_to("first")
    reader.look_for(WORD)
    reader.expect_led_to(found)
    held.answer()
    reader.messages.last.scroll_into_view_if_needed()
    reader.expect_number(79)
    reader.expect_no_gap()
    reader.latest.click()
    reader.expect_number(220)
    reader.expect_no_gap()
    assert reader.numbers[-1] == 299


def test_newer_messages_that_come_late_do_not_lead_away_from_the_end(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    """They would reach down to it, but somebody went there meanwhile."""
    found = fill(conversation, 200, named=100)
    person.open_conversation(conversation.pk)
    held = Held(reader, "after")
    reader.look_for(WORD)
    reader.expect_led_to(found)
    held.wait_by_scrolling_to("last")
    reader.latest.click()
    held.answer()
    reader.messages.first.scroll_into_view_if_needed()
    reader.expect_number(120)
    reader.expect_no_gap()
    assert reader.numbers[-1] == 199


def test_older_messages_are_dropped_when_what_they_come_before_is_not_shown_any_more(
    reader: Reader, person: Person, conversation: Conversation
) -> None:
    """A snapshot shows so much new that nothing of what was loaded still joins it."""
    first, *_ = numbered(conversation, range(100))
    person.open_conversation(conversation.pk)
    held = Held(reader, "before")
    held.wait_by_scrolling_to("first")
    numbered(conversation, range(100, 200))
    edit_message(conversation.owner_id, first.pk, "Message 0. Corrected.")
    reader.expect_number(199)
    held.answer()
    reader.messages.first.scroll_into_view_if_needed()
    reader.expect_number(120)
    reader.expect_no_gap()
    assert reader.numbers[-1] == 199
