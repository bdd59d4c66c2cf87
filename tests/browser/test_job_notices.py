"""How the end of a job is told: by a notice where it cannot be seen, always to be heard."""

from __future__ import annotations

import pytest
from django.db import connection
from playwright.sync_api import Route, expect

from recovery.errors import ErrorCode
from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_jobs import GOAL, HIDDEN, running_job
from tests.browser.test_reading import said
from tests.factories import ConversationFactory, fence_of
from turns.models import Conversation
from work.models import WorkJob
from work.transitions import append_report, finish_job

LOOKED_AT_AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"


def complete(job: WorkJob, report: str = "It was the clapper.") -> None:
    """End a job with its report."""
    append_report(fence_of(job), report)
    finish_job(fence_of(job), WorkJob.State.COMPLETED)


def close_rail(rail: JobsRail) -> None:
    rail.page.get_by_role("button", name="Jobs, 1 at work").click()
    expect(rail.rail).to_be_hidden()


@pytest.mark.parametrize("is_open", [True, False], ids=["the rail", "the report alone"])
def test_an_end_that_can_be_seen_where_it_happens_is_spoken_and_covered_by_no_notice(
    person: Person, rail: JobsRail, conversation: Conversation, is_open: bool
) -> None:
    for number in range(8):
        said(conversation, f"Before {number}", "line\n\n" * 20)
    job = running_job(conversation)
    person.open_conversation(conversation.pk)
    if not is_open:
        close_rail(rail)
    complete(job)
    expect(rail.reports).to_be_in_viewport()
    expect(person.spoken).to_have_text(f"Deep work is done. {GOAL}")
    expect(rail.toasts).to_have_count(0)


def test_an_end_out_of_view_is_told_with_the_way_to_its_report(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    for number in range(8):
        said(conversation, f"Before {number}", "line\n\n" * 20)
    job = running_job(conversation)
    person.open_conversation(conversation.pk)
    close_rail(rail)
    person.page.locator("#view").evaluate("view => { view.scrollTop = 200; }")
    expect(person.button("Latest")).to_be_visible()
    complete(job)
    expect(rail.toasts).to_contain_text(f"Deep work is done. {GOAL}")
    expect(rail.reports).not_to_be_in_viewport()
    rail.toasts.get_by_role("link", name="Show report").click()
    expect(rail.reports).to_be_focused()
    expect(rail.toasts).to_have_count(0)


def test_an_end_on_a_page_nobody_sees_is_told(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation)
    person.open_conversation(conversation.pk)
    person.page.evaluate(HIDDEN)
    complete(job)
    expect(rail.toasts).to_contain_text(f"Deep work is done. {GOAL}")
    expect(person.page).to_have_title("(1) Bells · Holdfast")


@pytest.mark.parametrize("jobs_before", [0, 2])
def test_a_job_elsewhere_that_began_and_ended_between_two_looks_is_told(
    person: Person, rail: JobsRail, conversation: Conversation, jobs_before: int
) -> None:
    elsewhere = ConversationFactory.create(owner=conversation.owner, title="Ropes")
    for number in range(jobs_before):
        complete(running_job(elsewhere, f"Told long ago, number {number}."))
    with person.page.expect_response("**/api/v1/jobs?state=open"):
        person.open_conversation(conversation.pk)
    complete(running_job(elsewhere, "Splice the rope."))
    for _ in range(2):  # it is told once
        with person.page.expect_response("**/api/v1/jobs?state=open"):
            person.page.evaluate(LOOKED_AT_AGAIN)
        expect(rail.toasts).to_have_count(1)
    expect(rail.toasts).to_contain_text("Deep work is done. Splice the rope.")
    expect(person.page.locator("#jobs-elsewhere li")).to_have_count(0)


def test_a_few_notices_stand_together_and_on_a_phone_one(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    elsewhere = ConversationFactory.create(owner=conversation.owner, title="Ropes")
    jobs = [running_job(elsewhere, f"Splice number {number}.") for number in range(5)]
    person.open_conversation(conversation.pk)
    section = person.page.locator("#jobs-elsewhere")
    expect(section.locator("li")).to_have_count(5)
    for job in jobs:
        complete(job)
    expect(section.locator("li")).to_have_count(0)
    expect(rail.toasts).to_have_count(3)
    for toast in rail.toasts.all():
        expect(toast).to_be_visible()
    person.page.set_viewport_size({"width": 390, "height": 780})
    shown = rail.toasts.locator("visible=true")
    expect(shown).to_have_count(1)
    shown.get_by_role("button", name="Close this notice").click()
    expect(shown).to_have_count(1)


def test_a_question_about_a_job_that_ends_meanwhile_is_withdrawn_with_a_word(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation)
    person.open_conversation(conversation.pk)
    card = rail.card(GOAL)
    card.get_by_role("button", name="Cancel").click()
    dialog = person.page.get_by_role("dialog", name="Cancel this job?")
    expect(dialog).to_be_visible()
    complete(job)
    expect(dialog).to_be_hidden()
    expect(rail.toasts).to_contain_text(
        f"Deep work is done. There is nothing left to cancel. {GOAL}"
    )
    expect(card).to_be_focused()
    rail.expect_look(card, "completed")


def test_a_job_that_ends_while_it_is_being_cancelled_says_that_it_was_not(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation)
    person.open_conversation(conversation.pk)

    def end_before(route: Route) -> None:
        finish_job(fence_of(job), WorkJob.State.FAILED, error_code=ErrorCode.PROVIDER_TIMEOUT)
        # a handler has a context of its own, and so a session that nobody else would close
        connection.close()
        route.continue_()

    person.page.route("**/api/v1/jobs/*/cancel", end_before)
    rail.card(GOAL).get_by_role("button", name="Cancel").click()
    person.button("Cancel the job").click()
    expect(person.page.get_by_role("dialog", name="Cancel this job?")).to_be_hidden()
    expect(rail.toasts).to_contain_text(
        f"Deep work has failed. There is nothing left to cancel. {GOAL}"
    )
    expect(rail.card(GOAL)).to_be_focused()


def test_a_job_elsewhere_that_ends_in_the_middle_of_a_look_is_told(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    elsewhere = ConversationFactory.create(owner=conversation.owner, title="Ropes")
    with person.page.expect_response("**/api/v1/jobs?state=open"):
        person.open_conversation(conversation.pk)
    job = running_job(elsewhere, "Splice the rope.")

    def end_before(route: Route) -> None:
        complete(job)
        # a handler has a context of its own, and so a session that nobody else would close
        connection.close()
        route.continue_()

    person.page.route("**/api/v1/jobs?state=open", end_before, times=1)
    for _ in range(2):
        with person.page.expect_response("**/api/v1/jobs?state=open"):
            person.page.evaluate(LOOKED_AT_AGAIN)
    expect(rail.toasts).to_contain_text("Deep work is done. Splice the rope.")
