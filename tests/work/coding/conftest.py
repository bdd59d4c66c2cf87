from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from tests.work.coding.repositories import PersonsRepository


@pytest.fixture(autouse=True)
def home(settings: Settings, tmp_path: Path) -> Path:
    """Give each test an installation's directory of its own."""
    home = tmp_path / "home"
    home.mkdir()
    settings.HOLDFAST_HOME = home
    return home


@pytest.fixture
def repository(tmp_path: Path) -> PersonsRepository:
    """A repository with two files and one commit."""
    repository = PersonsRepository(tmp_path / "project")
    repository.commit({"README.md": "hello\nworld\n", "src/app.py": "print('hello')\n"})
    return repository
