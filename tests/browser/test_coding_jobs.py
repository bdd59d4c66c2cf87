"""A coding job on the page: where it works, what it changes, and what it leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect
from pytest_django.fixtures import Settings

from recovery.hosts import host_id
from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.factories import ComputerFactory, ConversationFactory
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer, stalled, tool_calls
from tests.support.worker import WorkerStarter
from tests.work.coding.repositories import PersonsRepository

GOAL = "Add b."
WRITE = ("call_1", "write_file", json.dumps({"path": "b.txt", "text": "two\n"}))
AWAY = ("call_2", "read_file", json.dumps({"path": "../outside"}))
COMMIT = ("call_3", "commit", json.dumps({"message": "Add b"}))


@pytest.fixture
def repository(
    tmp_path: Path, environment: dict[str, str], user: User, settings: Settings
) -> PersonsRepository:
    """A repository on the machine of the workers, where the person's jobs may work."""
    settings.HOLDFAST_HOME = environment["HOLDFAST_HOME"]
    made = PersonsRepository(tmp_path / "repository")
    made.commit({"a.txt": "one\n"}, "First")
    ComputerFactory.create(person=user, name="laptop", roots=[str(made.top)], host_id=host_id())
    return made


def test_a_coding_job_shows_its_branch_its_commit_and_what_was_refused(
    person: Person,
    user: User,
    repository: PersonsRepository,
    start_worker: WorkerStarter,
    model: Simulator,
) -> None:
    main = repository.git("rev-parse", "main")
    model.script(
        tool_calls(WRITE, AWAY), tool_calls(COMMIT, response_id="resp_2"),
        stalled("I added b.", response_id="resp_3"),
    )  # fmt: skip
    worker = start_worker()
    person.open_conversation(ConversationFactory.create(owner=user, title="Letters").pk)
    rail = JobsRail(person)
    rail.begin()
    person.page.get_by_role("radio", name="Coding").check()
    expect(person.page.get_by_label("Directory", exact=True)).to_have_value(str(repository.top))
    rail.goal.fill(GOAL)
    person.button("Start job").click()
    card = rail.card(GOAL)
    model.wait_for_gate("answer")
    expect(card.locator(".job-facts")).to_have_text("3 steps done · on laptop")
    card.get_by_text("3 steps", exact=True).click()
    expect(card.locator(".step")).to_have_text(
        ["write file succeeded", "read file refused: path refused", "commit succeeded"]
    )

    worker.kill()
    model.script(answer("I added b.", response_id="resp_4"))
    start_worker()
    rail.expect_look(card, "completed")
    expect(card.locator(".job-facts")).to_contain_text("taken over after a restart")
    expect(rail.reports).to_contain_text("I added b.")
    branch, tip = card.locator(".job-branch code").inner_text().split(" @ ")
    assert repository.git("rev-parse", branch).startswith(tip)
    assert re.fullmatch(r"[0-9a-f]{10}", tip)
    assert repository.git("show", f"{branch}:b.txt") == "two"
    assert repository.git("rev-parse", "main") == main
