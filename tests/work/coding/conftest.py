from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings
from pytest_django.plugin import DjangoDbBlocker

from tests.work.coding.repositories import PersonsRepository


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
