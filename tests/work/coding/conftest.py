from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings
from pytest_django.plugin import DjangoDbBlocker

from tests.work.coding.repositories import PersonsRepository, job_in
from tests.work.coding.workers import store
from work.coding.workspace import Workspace


@pytest.fixture(autouse=True)
def home(settings: Settings, tmp_path: Path) -> Path:
    """Give each test an installation's directory of its own."""
    home = tmp_path / "home"
    home.mkdir()
    settings.HOLDFAST_HOME = home
    return home


@pytest.fixture(autouse=True)
def sessions_may_be_looked_at(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Let a thread of the executor look whether the session of an earlier test still lives.

    These tests write no rows, so there is nothing to put back.
    """
    with django_db_blocker.unblock():
        yield


@pytest.fixture
def repository(tmp_path: Path) -> PersonsRepository:
    """A repository with two files and one commit."""
    repository = PersonsRepository(tmp_path / "project")
    repository.commit({"README.md": "hello\nworld\n", "src/app.py": "print('hello')\n"})
    return repository


@pytest.fixture
async def workspace(repository: PersonsRepository) -> AsyncIterator[Workspace]:
    """The workspace of a job in that repository, which ignores some files and has a check."""
    repository.commit({".gitignore": "*.log\nbuild/\n"})
    job = job_in(repository.top, checks={"fails": ["/bin/sh", "-c", "echo wrong; exit 3"]})
    workspace = await job.open()
    yield workspace
    await workspace.close()


@pytest.fixture
def path(repository: PersonsRepository, tmp_path: Path) -> Path:
    """The file that is the database of one job."""
    path = tmp_path / "database" / "job.json"
    path.parent.mkdir()
    store(job_in(repository.top), path)
    return path
