"""The card of a job: it keeps still, shows a long goal when asked to, and says what is done."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.test_jobs import running_job
from tests.factories import WorkProviderStepFactory, WorkStepFactory
from turns.models import Conversation
from work.transitions import request_cancel

LONG = "Find out why the bell does not ring, and say how you know. " * 16


def card_of(rail: JobsRail, beginning: str) -> Locator:
    """Return the card of the job whose goal begins so."""
    return rail.cards.filter(has_text=beginning)


def test_no_button_of_a_card_moves_when_somebody_points_at_it_or_focuses_it(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    for name in ("First", "Second"):
        running_job(conversation, f"{name}. {LONG}")
    person.open_conversation(conversation.pk)
    buttons = rail.cards.get_by_role("button")
    expect(rail.cards).to_have_count(2)
    before = buttons.evaluate_all("all => all.map(one => one.getBoundingClientRect().y)")
    for card in rail.cards.all():
        cancel = card.get_by_role("button", name="Cancel")
        cancel.hover()
        cancel.focus()
        now = buttons.evaluate_all("all => all.map(one => one.getBoundingClientRect().y)")
        assert now == before
    # where it was before anybody pointed there
    box = rail.cards.last.get_by_role("button", name="Cancel").bounding_box()
    assert box is not None
    person.page.mouse.move(0, 0)
    person.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(person.page.get_by_role("dialog", name="Cancel this job?")).to_be_visible()


def test_a_goal_that_is_cut_is_shown_whole_by_the_keyboard_and_stays_so(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation, f"Long. {LONG}")
    running_job(conversation, "Short.")
    person.page.set_viewport_size({"width": 390, "height": 780})
    person.open_conversation(conversation.pk)
    rail.open()
    card = card_of(rail, "Long.")
    more = card.get_by_role("button", name="Show all", exact=True)
    expect(more).to_have_attribute("aria-expanded", "false")
    short = card_of(rail, "Short.")
    expect(short.get_by_role("button", name="Cancel")).to_be_visible()
    expect(short.get_by_role("button", name="Show all")).to_be_hidden()
    goal = card.locator(".job-goal")
    assert is_cut(goal)
    more.press("Enter")
    less = card.get_by_role("button", name="Show less", exact=True)
    expect(less).to_be_focused()
    expect(less).to_have_attribute("aria-expanded", "true")
    assert not is_cut(goal)

    request_cancel(conversation.owner_id, job.pk)
    rail.expect_look(card, "stopping")
    expect(less).to_be_focused()
    assert not is_cut(goal)
    less.press("Enter")
    expect(more).to_have_attribute("aria-expanded", "false")
    assert is_cut(goal)


def test_a_card_names_the_call_that_runs_not_one_that_waits_for_it(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    job = running_job(conversation)
    asking = WorkProviderStepFactory.create(job=job, completed=True)
    WorkStepFactory.create(
        job=job, provider_step=asking, running=True, name="run_checks", sequence=1
    )
    WorkStepFactory.create(job=job, provider_step=asking, name="read_file", sequence=2)
    person.open_conversation(conversation.pk)
    expect(rail.cards.locator(".job-words")).to_have_text("Running the checks")


def is_cut(goal: Locator) -> bool:
    """Whether there is more of a goal than is shown."""
    return bool(goal.evaluate("goal => goal.scrollHeight > goal.clientHeight + 1"))
