"""Chromium on the real page: a web process, workers and a scripted model, all of them real."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.browser.jobs_rail import JobsRail
from tests.browser.person import Person
from tests.browser.web import Web
from tests.factories import ConversationFactory, UserFactory
from tests.simulators import client
from tests.simulators.client import Simulator
from tests.support.worker import WorkerStarter, workers
from turns.models import Conversation

CHROMIUM = shutil.which("chromium")
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here; without a Chromium there is nothing to drive."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="chromium is not installed"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless Chromium. Not for the whole run: asynchronous tests need the thread's loop."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(autouse=True)
def orm_beside_playwright(monkeypatch: pytest.MonkeyPatch) -> None:
    """Playwright keeps a loop in this thread, and Django would refuse to ask the database."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


@pytest.fixture(scope="module")
def model_process() -> Iterator[Simulator]:
    """A scripted model service that outlives every worker."""
    with client.as_process("responses") as simulator:
        yield simulator


@pytest.fixture
def model(model_process: Simulator) -> Simulator:
    model_process.reset()
    return model_process


@pytest.fixture
def environment(process_environment: dict[str, str], model: Simulator) -> dict[str, str]:
    """What web and workers have in common."""
    return {
        **process_environment,
        "LLM_API": "responses",
        "LLM_BASE_URL": model.base_url,
        "LLM_MODEL": "scripted",
    }


@pytest.fixture
def web(environment: dict[str, str], tmp_path: Path) -> Iterator[Web]:
    """The web process."""
    running = Web(environment, tmp_path / "web.log")
    try:
        running.start()
        yield running
    finally:
        running.kill()


@pytest.fixture
def start_worker(environment: dict[str, str], tmp_path: Path) -> Iterator[WorkerStarter]:
    """Start real workers; every one of them is gone before the database is emptied."""
    with workers(environment, tmp_path) as starter:
        yield starter


@pytest.fixture
def user(transactional_db: None) -> User:
    return UserFactory.create(username="ada")


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser without memory, as wide as a laptop."""
    with_nothing = chromium.new_context(viewport={"width": 1200, "height": 800})
    yield with_nothing
    with_nothing.close()


@pytest.fixture
def person(web: Web, context: BrowserContext, user: User) -> Iterator[Person]:
    """Somebody who is signed in. Errors in the page's scripts fail the test."""
    context.add_cookies([session_of(user, web.url)])
    someone = Person(context.new_page(), web.url)
    yield someone
    assert someone.errors == []


@pytest.fixture
def rail(person: Person) -> JobsRail:
    """The jobs on that person's page."""
    return JobsRail(person)


@pytest.fixture
def conversation(user: User) -> Conversation:
    """An empty conversation of theirs."""
    return ConversationFactory.create(owner=user, title="Bells")


def session_of(user: User, url: str) -> Any:
    """Return the cookie that proves that `user` has signed in."""
    signed_in = Client()
    signed_in.force_login(user)
    return {"name": "sessionid", "value": signed_in.cookies["sessionid"].value, "url": url}
