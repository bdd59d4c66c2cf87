"""Ask, see the answer stream, lose the worker, be told the truth, ask again."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.person import Person
from tests.browser.web import Web
from tests.simulators.client import Simulator
from tests.simulators.replies import hold, send
from tests.simulators.responses_wire import Stream, answer, frames_reply, stalled, tool_calls
from tests.support.worker import WorkerStarter
from turns.models import Conversation, Turn

# What breaks a careless page: markup, emoji, spaces, the breaks of Unicode.
PIECES = (
    "One  <b>moment</b> & ",
    "two\u2028lines\n\n  and 👩‍👩‍👧 ",
    "שלום \U0001f9ed",
    " e\u0301nd.",
)


def test_a_killed_worker_is_shown_as_interrupted_and_the_next_question_is_answered(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("The oldest ", "anchors were ", "baskets of "))
    worker = start_worker()
    person.open("/")
    expect(person.page).to_have_url(re.compile("/new/$"))
    person.ask("What is an anchor?")
    expect(person.box).to_have_value("")
    expect(person.page).to_have_url(re.compile(r"/c/\d+/$"))
    person.expect_text("The oldest anchors were baskets of ")
    person.expect_look("running")

    person.page.reload()
    person.expect_text("The oldest anchors were baskets of ")
    expect(person.questions).to_have_text(["What is an anchor?"])
    person.expect_connection("live")

    worker.kill()
    person.expect_look("interrupted")
    expect(person.note("interrupted")).to_contain_text("The process doing this work died")
    expect(person.answers).to_have_text(["The oldest anchors were baskets of"])
    expect(person.spoken).to_contain_text("The answer was interrupted.")
    assert model.posts == 1

    model.script(answer("An iron hook."))
    start_worker()
    person.button("Send again").click()
    expect(person.answers).to_have_text(["The oldest anchors were baskets of", "An iron hook."])
    expect(person.questions).to_have_text(["What is an anchor?"] * 2)
    person.expect_look("complete")
    assert model.posts == 2
    assert list(Turn.objects.order_by("pk").values_list("state", flat=True)) == [
        "interrupted",
        "completed",
    ]


def test_the_text_in_the_page_is_the_text_the_model_sent(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    stream = Stream()
    frames = [*stream.opening(), *stream.message(*PIECES), stream.terminal()]
    # each piece waits until the page shows the ones before it
    steps = [send(*frames[:4])]
    for index in range(len(PIECES)):
        steps += [hold(f"piece-{index}"), send(frames[4 + index])]
    model.script(frames_reply(*steps, hold("end"), *frames[4 + len(PIECES) :]))
    start_worker()
    person.open("/new/")
    person.ask("?")
    for index in range(len(PIECES)):
        model.wait_for_gate(f"piece-{index}")
        if index == 2:
            person.page.reload()
        person.expect_text("".join(PIECES[:index]))
        model.release(f"piece-{index}")
    person.expect_text("".join(PIECES))
    model.release("end")
    person.expect_look("complete")
    expect(person.answers).to_have_text(["".join(PIECES)])


def test_nothing_is_lost_or_repeated_when_the_web_process_dies_in_mid_stream(
    person: Person, start_worker: WorkerStarter, model: Simulator, web: Web
) -> None:
    model.script(answer("Before, ", "meanwhile, ", "after.", hold_after=1))
    start_worker()
    person.open("/new/")
    person.ask("?")
    person.expect_text("Before, ")
    web.kill()
    person.expect_connection("reconnecting")
    model.release("answer")
    model.wait_until_finished()
    web.start()
    person.expect_connection("live")
    person.expect_look("complete")
    expect(person.answers).to_have_text(["Before, meanwhile, after."])


def test_an_answer_can_be_stopped(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("It begins "))
    start_worker()
    person.open("/new/")
    person.ask("?")
    person.expect_text("It begins ")
    person.button("Stop").click()
    person.expect_look("cancelled")
    expect(person.answers).to_have_text(["It begins"])
    expect(person.button("Stop")).to_be_hidden()
    expect(person.box).to_be_focused()
    model.wait_for_disconnects()


def test_a_question_without_a_worker_waits_and_can_be_stopped(person: Person) -> None:
    person.open("/new/")
    person.ask("?")
    person.expect_look("queued")
    expect(person.note("queued")).to_contain_text("Waiting for a worker.")
    person.button("Stop").click()
    person.expect_look("cancelled")


def test_a_failed_and_a_cut_answer_look_different_and_say_what_to_do_next(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    stream = Stream()
    opened = [*stream.opening(), *stream.message("As far as ")]
    cut = stream.terminal("incomplete", incomplete_details={"reason": "max_output_tokens"})
    model.script(frames_reply(*opened, cut), frames_reply(status=503))
    start_worker()
    person.open("/new/")
    person.ask("?")
    person.expect_look("cut")
    expect(person.note("cut")).to_contain_text("The answer was cut before its end.")
    person.button("Ask for the rest").click()
    expect(person.box).to_have_value("Please go on where you were cut off.")
    person.box.press("Enter")
    person.expect_look("failed")
    expect(person.note("failed")).to_contain_text("The model service is not available.")
    expect(person.button("Send again")).to_have_count(1)


def test_the_tools_an_answer_used_are_shown_with_how_they_ended(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    wrong = ("call_2", "webhook_post", '{"url": "https://example.test/", "body": "{}"}')
    model.script(
        tool_calls(("call_1", "search_history", '{"query": "anchor"}'), wrong),
        stalled("Nothing found."),
    )
    start_worker()
    person.open("/new/")
    person.ask("?")
    steps = person.page.locator("#thread .answer .step")
    shown = ["search history succeeded", "webhook post refused: address not allowed"]
    expect(steps).to_have_text(shown)
    model.release("answer")
    person.expect_look("complete")
    expect(steps).to_have_text(shown)
    person.page.reload()
    expect(steps).to_have_text(shown)


def test_a_message_sent_while_an_answer_is_written_waits_for_its_end(
    person: Person, start_worker: WorkerStarter, model: Simulator
) -> None:
    """behaviour AD1"""
    model.script(stalled("One."), answer("Two."))
    start_worker()
    person.open("/new/")
    person.ask("First")
    person.expect_text("One.")
    person.ask("Second")
    expect(person.box).to_have_value("")
    expect(person.unsent).to_contain_text("Waits for the answer before it.")
    person.page.reload()
    expect(person.unsent).to_contain_text("Second")
    assert model.posts == 1
    model.release("answer")
    expect(person.answers).to_have_text(["One.", "Two."])
    expect(person.questions).to_have_text(["First", "Second"])
    expect(person.unsent).to_have_count(0)


def test_a_waiting_message_is_not_sent_when_the_answer_before_it_breaks_off(
    person: Person, start_worker: WorkerStarter, model: Simulator, web: Web
) -> None:
    model.script(stalled("One."))
    worker = start_worker()
    person.open("/new/")
    person.ask("First")
    person.expect_text("One.")
    person.ask("Second")
    worker.kill()
    person.expect_look("interrupted")
    expect(person.box).to_have_value("Second")
    expect(person.problem).to_contain_text("This was not sent")
    assert model.posts == 1
    assert Turn.objects.count() == 1
    assert Conversation.objects.count() == 1
