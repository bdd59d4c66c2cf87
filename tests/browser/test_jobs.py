"""Delegate, watch, lose the worker, see another take over, and read the report; or cancel."""

from __future__ import annotations

import re

from django.contrib.auth.models import User
from playwright.sync_api import expect

from recovery.errors import ErrorCode
from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_reading import said
from tests.browser.web import Web
from tests.factories import (
    ConversationFactory,
    WorkJobFactory,
    WorkProviderStepFactory,
    WorkStepFactory,
    fence_of,
)
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.worker import WorkerStarter
from turns.models import Conversation, Turn
from work.models import WorkJob, WorkStep
from work.transitions import append_report, finish_job

GOAL = "Find out why the bell does not ring."
# As if the page stood behind another one.
HIDDEN = "() => Object.defineProperty(document, 'visibilityState', {get: () => 'hidden'})"
SEARCH = ("call_1", "search_history", '{"query": "bell"}')


def running_job(conversation: Conversation, goal: str = GOAL) -> WorkJob:
    """Return a job that somebody works on: nobody, as far as this test goes."""
    return WorkJobFactory.create(
        person=conversation.owner, conversation=conversation, running=True, goal=goal
    )


def test_a_job_started_by_the_form_is_taken_over_when_its_worker_dies_and_reports(
    person: Person, rail: JobsRail, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(tool_calls(SEARCH), stalled("Thinking.", response_id="resp_2"))
    worker = start_worker()
    person.open("/new/")
    rail.start(GOAL)
    expect(person.page).to_have_url(re.compile(r"/c/\d+/$"))
    expect(person.page).to_have_title(f"{GOAL} · Holdfast")
    card = rail.card(GOAL)
    expect(card).to_be_focused()
    expect(person.spoken).to_have_text("Deep work has been started.")
    expect(person.page.locator("#conversations [aria-current]")).to_have_text(re.compile(GOAL))
    model.wait_for_gate("answer")
    rail.expect_look(card, "running")
    expect(card.locator(".job-words")).to_have_text("Thinking")
    expect(card.locator(".job-facts")).to_have_text("1 step done")
    card.get_by_text("1 step", exact=True).click()
    expect(card.locator(".step")).to_have_text(["search history succeeded"])
    expect(card.locator(".job-time")).to_have_text(re.compile(r"^\d:\d\d$"))
    expect(person.page.locator("#jobs-open")).to_have_text("1")

    worker.kill()
    expect(card.locator(".job-words")).to_contain_text("Another one takes it over.")
    rail.expect_look(card, "queued")
    model.script(answer("It was the **clapper**.", response_id="resp_3"))
    start_worker()
    rail.expect_look(card, "completed")
    expect(card.locator(".job-facts")).to_have_text("1 step done · taken over after a restart")
    # what a person has opened stays open
    expect(card.locator(".step")).to_be_visible()

    expect(rail.reports).to_have_count(1)
    report = rail.reports.first
    expect(report.locator("strong", has_text="clapper")).to_be_visible()
    expect(report.locator(".about")).to_contain_text(GOAL)
    expect(report.get_by_role("button", name="Start again")).to_be_hidden()
    # card and report are in view: a notice would only cover them
    expect(person.spoken).to_have_text(f"Deep work is done. {GOAL}")
    expect(rail.toasts).to_have_count(0)
    card.get_by_role("button", name="Show report").click()
    expect(report).to_be_focused()
    assert WorkStep.objects.count() == 1
    job = WorkJob.objects.get()
    assert (job.attempts, job.state) == (2, "completed")
    assert model.posts == 3

    person.page.reload()
    expect(rail.reports).to_have_count(1)
    rail.expect_look(rail.card(GOAL), "completed")
    expect(rail.toasts).to_have_count(0)


def test_a_job_is_cancelled_after_a_question(
    person: Person, rail: JobsRail, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(stalled("Thinking."))
    start_worker()
    person.open("/new/")
    rail.start(GOAL)
    card = rail.card(GOAL)
    model.wait_for_gate("answer")
    rail.expect_look(card, "running")
    card.get_by_role("button", name="Cancel").click()
    dialog = person.page.get_by_role("dialog", name="Cancel this job?")
    expect(dialog).to_contain_text(GOAL)
    dialog.get_by_role("button", name="Let it go on").click()
    expect(dialog).to_be_hidden()
    rail.expect_look(card, "running")

    card.get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel the job").click()
    rail.expect_look(card, "cancelled")
    expect(card.get_by_role("button", name="Cancel")).to_be_hidden()
    expect(rail.reports).to_contain_text("This job was cancelled.")
    expect(person.spoken).to_have_text("Deep work was cancelled.")
    # whoever did it needs no notice
    expect(rail.toasts).to_have_count(0)
    model.wait_for_disconnects()
    assert WorkJob.objects.get().state == "cancelled"


def test_a_waiting_job_is_cancelled_at_once_and_the_focus_stays_with_it(
    person: Person, rail: JobsRail
) -> None:
    person.open("/new/")
    rail.start(GOAL)
    card = rail.card(GOAL)
    expect(card.locator(".job-words")).to_have_text("Waiting for a worker")
    card.get_by_role("button", name="Cancel").click()
    person.button("Cancel the job").click()
    rail.expect_look(card, "cancelled")
    expect(card).to_be_focused()
    expect(rail.reports).to_contain_text("It had not begun.")


def test_a_job_is_there_after_a_reload_and_in_every_window(
    person: Person, rail: JobsRail, start_worker: WorkerStarter, model: Simulator
) -> None:
    model.script(tool_calls(SEARCH), stalled("The clapper.", response_id="resp_2"))
    start_worker()
    person.open("/new/")
    rail.start(GOAL)
    model.wait_for_gate("answer")
    expect(rail.card(GOAL).locator(".job-facts")).to_have_text("1 step done")

    other = Person(person.page.context.new_page(), person.url)
    other.page.goto(person.page.url)
    beside = JobsRail(other)
    person.page.reload()
    for one in (rail, beside):
        card = one.card(GOAL)
        rail.expect_look(card, "running")
        expect(card.locator(".job-words")).to_have_text("Thinking")
        expect(card.locator(".job-facts")).to_have_text("1 step done")
    model.release("answer")
    for one in (rail, beside):
        one.expect_look(one.card(GOAL), "completed")
        expect(one.reports).to_have_count(1)
        expect(one.reports).to_contain_text("The clapper.")
        expect(one.cards).to_have_count(1)
    assert other.errors == []


def test_nothing_of_a_job_is_lost_or_repeated_when_the_web_process_dies(
    person: Person, rail: JobsRail, start_worker: WorkerStarter, model: Simulator, web: Web
) -> None:
    model.script(stalled("The clapper."))
    start_worker()
    person.open("/new/")
    rail.start(GOAL)
    model.wait_for_gate("answer")
    rail.expect_look(rail.card(GOAL), "running")
    web.kill()
    person.expect_connection("reconnecting")
    model.release("answer")
    model.wait_until_finished()
    web.start()
    person.expect_connection("live")
    rail.expect_look(rail.card(GOAL), "completed")
    expect(rail.cards).to_have_count(1)
    expect(rail.reports).to_have_count(1)
    expect(person.spoken).to_have_text(f"Deep work is done. {GOAL}")
    expect(rail.toasts).to_have_count(0)


def test_the_end_of_a_job_elsewhere_is_told_with_the_way_there(
    person: Person, rail: JobsRail, conversation: Conversation, user: User
) -> None:
    elsewhere = ConversationFactory.create(owner=user, title="Ropes")
    job = running_job(elsewhere, "Splice them.")
    person.open_conversation(conversation.pk)
    rail.open()
    section = person.page.get_by_role("region", name="In other conversations")
    expect(section).to_contain_text("Splice them.")
    listed = person.page.locator(".conversation", has_text="Ropes")
    expect(listed).to_have_attribute("data-active", "")
    # as if another window had the focus
    person.page.evaluate("() => { document.hasFocus = () => false; }")
    append_report(fence_of(job), "Spliced.")
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    expect(rail.toasts).to_contain_text("Deep work is done. Splice them.")
    expect(person.page).to_have_title("(1) Bells · Holdfast")
    expect(section).to_be_hidden()
    expect(listed).not_to_have_attribute("data-active", "")
    person.page.evaluate("() => { dispatchEvent(new Event('focus')); }")
    expect(person.page).to_have_title("Bells · Holdfast")
    rail.toasts.get_by_role("link", name="Go there").click()
    expect(person.page).to_have_url(re.compile(f"/c/{elsewhere.pk}/$"))
    expect(rail.reports).to_contain_text("Spliced.")
    expect(rail.toasts).to_have_count(0)


def test_windows_of_one_browser_tell_each_other_of_jobs_at_once(
    person: Person, rail: JobsRail, conversation: Conversation, user: User
) -> None:
    """Without asking: what this window would ask is refused."""
    person.page.route("**/api/v1/jobs?*", lambda route: route.abort())
    person.open_conversation(conversation.pk)
    elsewhere = ConversationFactory.create(owner=user, title="Ropes")
    other = Person(person.page.context.new_page(), person.url)
    other.open_conversation(elsewhere.pk)
    beside = JobsRail(other)
    beside.start("Splice them.")
    card = beside.card("Splice them.")
    card.get_by_role("button", name="Cancel").click()
    other.button("Cancel the job").click()
    expect(rail.toasts).to_contain_text("Deep work was cancelled. Splice them.")
    assert other.errors == []


def test_an_interrupted_job_says_so_and_is_started_again_as_it_was(
    person: Person,
    rail: JobsRail,
    conversation: Conversation,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    job = WorkJobFactory.create(
        person=conversation.owner, conversation=conversation, running=True, attempts=4,
        goal=GOAL, context="It is of bronze.", wall_clock_seconds=120,
    )  # fmt: skip
    asking = WorkProviderStepFactory.create(job=job, completed=True)
    WorkStepFactory.create(job=job, provider_step=asking, running=True, name="note_save")
    finish_job(
        fence_of(job),
        WorkJob.State.INTERRUPTED,
        error_code=ErrorCode.ADOPTION_ATTEMPTS_EXHAUSTED,
    )
    person.open_conversation(conversation.pk)
    card = rail.cards.last
    rail.expect_look(card, "interrupted")
    expect(card).to_contain_text("The work was restarted too often without finishing.")
    expect(card).to_contain_text("1 of unknown outcome · taken over 3 times after restarts")
    report = rail.reports.first
    expect(report).to_contain_text("it is not known whether it took effect")
    expect(rail.toasts).to_have_count(0)

    model.script(answer("The clapper."))
    start_worker()
    report.get_by_role("button", name="Start again").click()
    rail.expect_look(rail.cards.first, "completed")
    expect(rail.cards).to_have_count(2)
    expect(rail.reports).to_have_count(2)
    expect(rail.reports.last).to_contain_text("The clapper.")
    again = WorkJob.objects.latest("pk")
    for name in ("kind", "goal", "context", "wall_clock_seconds", "authority"):
        assert getattr(again, name) == getattr(job, name)
    rail.expect_look(card, "interrupted")


def test_the_way_to_a_report_moves_the_messages_and_nothing_around_them(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    for number in range(8):
        said(conversation, f"Before {number}", "line\n\n" * 20)
    job = running_job(conversation)
    append_report(fence_of(job), "It was the clapper.")
    finish_job(fence_of(job), WorkJob.State.COMPLETED)
    for number in range(40):
        said(conversation, f"After {number}", "line\n\n" * 20)
    person.open_conversation(conversation.pk)
    expect(rail.reports).to_have_count(0)
    rail.card(GOAL).get_by_role("button", name="Show report").click()
    expect(rail.reports).to_be_focused()
    top, above, scrolled, room = person.page.evaluate(
        """() => [
            document.activeElement.getBoundingClientRect().top,
            document.getElementById("view").getBoundingClientRect().top,
            document.scrollingElement.scrollTop,
            document.scrollingElement.scrollHeight - document.scrollingElement.clientHeight,
        ]"""
    )
    assert (scrolled, room) == (0, 0)
    assert above == 52
    # a little below its edge
    assert 0 < top - above < 20


def test_a_job_that_the_model_starts_shows_up_beside_its_answer(
    person: Person, rail: JobsRail, start_worker: WorkerStarter, model: Simulator
) -> None:
    call = ("call_1", "start_job", '{"kind": "deep_work", "goal": "Look at the bell."}')
    gates = [stalled("It is under way.", gate=g, response_id=f"resp_{g}") for g in ("a", "b")]
    model.script(tool_calls(call), *gates)
    start_worker()
    person.open("/new/")
    person.ask("Why does the bell not ring?")
    card = rail.card("Look at the bell.")
    rail.expect_look(card, "running")
    for gate in ("a", "b"):
        model.release(gate)
    rail.expect_look(card, "completed")
    person.page.wait_for_function("() => document.querySelectorAll('.answer').length === 2")
    expect(person.questions).to_have_count(1)
    expect(rail.reports).to_have_count(1)
    assert Turn.objects.get().state == "completed"


def test_on_a_phone_jobs_are_a_drawer_and_a_line_below_the_messages(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation)
    WorkProviderStepFactory.create(job=job)
    person.page.set_viewport_size({"width": 390, "height": 780})
    person.open_conversation(conversation.pk)
    expect(rail.rail).to_be_hidden()
    line = person.page.get_by_role("list", name="Jobs at work").get_by_role("button")
    expect(line).to_contain_text("Deep work: Thinking")
    line.click()
    expect(rail.card(GOAL)).to_be_focused()
    person.page.keyboard.press("Escape")
    expect(rail.rail).to_be_hidden()
    opener = person.page.get_by_role("button", name="Jobs, 1 at work")
    expect(opener).to_be_focused()
    opener.press("Enter")
    person.button("New job").press("Enter")
    expect(rail.goal).to_be_focused()
    rail.goal.fill("Something else.")
    person.page.keyboard.press("Control+Enter")
    expect(rail.card("Something else.")).to_be_focused()
    width = person.page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 390
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
    rail.card(GOAL).get_by_role("button", name="Show report").click()
    expect(rail.rail).to_be_hidden()
    expect(rail.reports).to_be_focused()


def test_on_a_phone_a_long_line_about_a_job_is_cut(
    person: Person, conversation: Conversation
) -> None:
    WorkJobFactory.create(person=conversation.owner, conversation=conversation, released=True)
    person.page.set_viewport_size({"width": 380, "height": 780})
    person.open_conversation(conversation.pk)
    lines = person.page.get_by_role("list", name="Jobs at work")
    line = lines.get_by_role("button")
    expect(line).to_contain_text("Another one takes it over.")
    assert line.evaluate("line => line.getBoundingClientRect().width") <= 380 - 2 * 16
    assert lines.evaluate("list => list.scrollWidth <= list.clientWidth")
    expect(line.locator(".job-time")).to_be_in_viewport(ratio=1)


def test_a_rail_that_was_closed_stays_closed_and_shows_lines_instead(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    running_job(conversation)
    person.open_conversation(conversation.pk)
    lines = person.page.get_by_role("list", name="Jobs at work")
    expect(rail.rail).to_be_visible()
    expect(lines).to_be_hidden()
    person.page.get_by_role("button", name="Jobs, 1 at work").click()
    expect(rail.rail).to_be_hidden()
    expect(lines.get_by_role("button")).to_have_count(1)
    person.page.reload()
    person.expect_connection("live")
    expect(lines.get_by_role("button")).to_have_count(1)
    expect(rail.rail).to_be_hidden()


def test_markup_in_a_goal_is_inert(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    goal = '<img src=x onerror="document.title = 1"><b>bold</b>'
    job = running_job(conversation, goal)
    person.open_conversation(conversation.pk)
    expect(rail.card(goal)).to_be_visible()
    person.page.evaluate(HIDDEN)
    finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
    expect(rail.reports.locator(".about-title")).to_have_text(goal)
    expect(rail.toasts).to_contain_text(goal)
    expect(person.page.locator("img")).to_have_count(0)
    person.page.reload()
    expect(rail.reports.locator(".about-title")).to_have_text(goal)
    expect(person.page.locator("img")).to_have_count(0)
