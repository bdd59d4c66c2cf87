"""A job is asked for without the model: once, whatever is lost on the way."""

from __future__ import annotations

import re

from playwright.sync_api import APIResponse, Route, expect

from recovery.errors import ErrorCode
from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.factories import ComputerFactory
from turns.models import Conversation
from work.bounds import WALL_CLOCK_SECONDS
from work.models import WorkJob

GOAL = "Find out why the bell does not ring."


def test_a_request_whose_answer_is_lost_starts_one_job_when_it_is_sent_again(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    lost: list[APIResponse] = []

    def lose(route: Route) -> None:
        lost.append(route.fetch())
        route.abort()

    person.open_conversation(conversation.pk)
    person.page.route("**/api/v1/conversations/*/jobs", lose, times=1)
    rail.start(GOAL)
    expect(rail.problem).to_contain_text("Try again: it begins once.")
    expect(rail.goal).to_have_value(GOAL)
    assert [response.status for response in lost] == [202]
    person.button("Start job").click()
    expect(rail.goal).to_be_hidden()
    expect(rail.cards).to_have_count(1)
    assert WorkJob.objects.count() == 1


def test_a_request_under_way_at_a_reload_is_not_lost_and_not_doubled(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    person.page.route("**/api/v1/conversations/*/jobs", hold, times=1)
    rail.start(GOAL)
    expect(person.button("Start job")).to_be_disabled()
    assert len(held) == 1
    person.page.reload()
    expect(rail.card(GOAL)).to_be_visible()
    assert WorkJob.objects.count() == 1
    person.page.reload()
    expect(rail.card(GOAL)).to_be_visible()
    assert WorkJob.objects.count() == 1


def test_a_coding_job_says_where_it_works_and_what_it_may_do(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    rail.begin()
    kinds = person.page.get_by_role("group", name="Kind")
    kinds.get_by_role("radio", name="Coding").check()
    expect(rail.rail).to_contain_text("None of your computers is set up for jobs yet.")
    rail.goal.fill(GOAL)
    person.button("Start job").click()
    expect(rail.problem).to_have_text("Choose a computer first.")

    ComputerFactory.create(
        person=conversation.owner, name="laptop", roots=["/srv/bells", "/srv/ropes"]
    )
    kinds.get_by_role("radio", name="Deep work").check()
    kinds.get_by_role("radio", name="Coding").check()
    expect(person.page.get_by_label("Computer", exact=True)).to_have_value(re.compile(r"\d+"))
    expect(rail.rail).to_contain_text("Jobs may change files there and run tests.")
    place = person.page.get_by_label("Directory", exact=True)
    expect(place).to_have_value("/srv/bells")
    place.fill("/etc")
    person.button("Start job").click()
    expect(rail.problem).to_have_text(str(ErrorCode.OUTSIDE_ROOTS.label))
    expect(rail.goal).to_have_value(GOAL)
    place.fill("/srv/ropes/long")
    person.button("Start job").click()
    card = rail.card(GOAL)
    expect(card.locator(".job-kind")).to_have_text("Coding")
    expect(card.locator(".job-facts")).to_have_text("on laptop")
    assert WorkJob.objects.get().cwd == "/srv/ropes/long"


def test_a_form_half_written_is_there_after_a_reload(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    rail.begin()
    person.button("Start job").click()
    expect(rail.problem).to_have_text("Say what the job is to do: its goal.")
    rail.goal.fill("\u3164")
    person.button("Start job").click()
    expect(rail.problem).to_have_text("Say what the job is to do: its goal.")
    rail.goal.fill("é" * 1_001)
    expect(rail.problem).to_have_text("The goal is too long by 2 bytes.")
    rail.goal.fill("a" * 2_001)
    expect(rail.problem).to_have_text("The goal is too long by 1 byte.")
    rail.goal.fill(GOAL)
    expect(rail.problem).to_be_empty()
    person.page.reload()
    rail.open()
    expect(rail.goal).to_have_value(GOAL)
    person.button("Discard").click()
    person.page.reload()
    rail.open()
    expect(rail.goal).to_be_hidden()
    assert not WorkJob.objects.exists()


def test_a_coding_job_half_written_keeps_its_computer_and_directory(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    for name in ("laptop", "tower"):
        ComputerFactory.create(
            person=conversation.owner, name=name, roots=[f"/srv/{name}", f"/home/{name}"]
        )
    person.open_conversation(conversation.pk)
    rail.begin()
    kinds = person.page.get_by_role("group", name="Kind")
    computer = person.page.get_by_label("Computer", exact=True)
    place = person.page.get_by_label("Directory", exact=True)
    kinds.get_by_role("radio", name="Coding").check()
    rail.goal.fill(GOAL)
    computer.select_option("tower")
    expect(place).to_have_value("/srv/tower")
    person.page.reload()
    expect(computer.locator("option:checked")).to_have_text("tower")
    expect(place).to_have_value("/srv/tower")

    place.fill("/home/tower/bells")
    kinds.get_by_role("radio", name="Deep work").check()
    expect(place).to_be_hidden()
    person.page.reload()
    expect(rail.goal).to_have_value(GOAL)
    expect(place).to_be_hidden()
    kinds.get_by_role("radio", name="Coding").check()
    expect(computer.locator("option:checked")).to_have_text("tower")
    expect(place).to_have_value("/home/tower/bells")
    place.fill("/home/tower/ropes")
    kinds.get_by_role("radio", name="Deep work").check()
    with person.page.expect_response("**/api/v1/computers"):
        kinds.get_by_role("radio", name="Coding").check()
    expect(place).to_have_value("/home/tower/ropes")
    person.button("Start job").click()
    expect(rail.card(GOAL).locator(".job-facts")).to_have_text("on tower")
    assert WorkJob.objects.get().cwd == "/home/tower/ropes"


def test_a_coding_job_half_written_is_started_before_its_computers_have_come(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    ComputerFactory.create(person=conversation.owner, name="laptop", roots=["/srv/bells"])
    person.open_conversation(conversation.pk)
    rail.begin()
    person.page.get_by_role("radio", name="Coding").check()
    expect(person.page.get_by_label("Directory", exact=True)).to_have_value("/srv/bells")
    rail.goal.fill(GOAL)
    # the first answer is lost
    person.page.route("**/api/v1/computers", lambda route: route.abort(), times=1)
    person.page.reload()
    expect(rail.problem).to_contain_text("cannot be reached")
    person.button("Start job").click()
    expect(rail.card(GOAL)).to_be_visible()
    assert WorkJob.objects.get().cwd == "/srv/bells"


def test_a_time_limit_is_sent_when_it_is_given_and_refused_when_it_is_out_of_bounds(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    rail.begin(GOAL)
    person.page.get_by_text("Context and time limit", exact=True).click()
    limit = person.page.get_by_role("textbox", name="Time limit in minutes", exact=True)
    most = person.page.locator("#job-minutes-most")
    expect(most).to_have_text("10 minutes at most, and if this is left empty.")
    for wrong in ("10.1", "0.1", "0", "-3", "soon"):
        limit.fill(wrong)
        expect(rail.problem).to_have_text(
            "The time limit is to be in minutes, from 10 seconds to 10 minutes."
        )
        expect(limit).to_have_attribute("aria-invalid", "")
        expect(limit).to_have_accessible_description(
            re.compile("10 minutes at most.*in minutes")
        )
        person.button("Start job").click()
        expect(rail.goal).to_have_value(GOAL)
    kinds = person.page.get_by_role("group", name="Kind")
    limit.fill("60")
    expect(rail.problem).to_contain_text("to 10 minutes.")
    kinds.get_by_role("radio", name="Coding").check()
    expect(most).to_have_text("60 minutes at most, and if this is left empty.")
    expect(rail.problem).to_be_empty()
    limit.fill("61")
    expect(rail.problem).to_contain_text("from 10 seconds to 60 minutes.")
    kinds.get_by_role("radio", name="Deep work").check()
    assert not WorkJob.objects.exists()
    limit.fill("2,5")
    expect(rail.problem).to_be_empty()
    expect(limit).not_to_have_attribute("aria-invalid", "")
    person.button("Start job").click()
    expect(rail.card(GOAL)).to_be_visible()
    assert WorkJob.objects.get().wall_clock_seconds == 150

    person.button("New job").click()
    expect(rail.goal).to_be_focused()
    expect(person.page.locator("#job-minutes")).to_have_value("")
    rail.goal.fill("As long as it may take.")
    person.button("Start job").click()
    expect(rail.card("As long as it may take.")).to_be_visible()
    assert WorkJob.objects.latest("pk").wall_clock_seconds == WALL_CLOCK_SECONDS


def test_a_time_limit_half_written_is_there_after_a_reload(
    person: Person, rail: JobsRail, conversation: Conversation
) -> None:
    person.open_conversation(conversation.pk)
    rail.begin(GOAL)
    person.page.get_by_text("Context and time limit", exact=True).click()
    limit = person.page.get_by_label("Time limit in minutes", exact=True)
    for text in ("half an", "5"):
        limit.fill(text)
        person.page.reload()
        rail.open()
        expect(limit).to_be_visible()
        expect(limit).to_have_value(text)
    person.button("Start job").click()
    expect(rail.card(GOAL)).to_be_visible()
    assert WorkJob.objects.get().wall_clock_seconds == 5 * 60
