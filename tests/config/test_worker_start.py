"""A worker starts soon: it loads nothing that only the page and the API need."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
from django.conf import settings

START = """
import sys
from celery.fixups.django import DjangoWorkerFixup
from config.celery import app
DjangoWorkerFixup(app).validate_models()
import config.worker
print(*sys.modules)
"""


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules of a process that came as far as Celery's `worker_init`."""
    # what this process has told Celery, a worker has to tell it by itself
    environment = {
        name: value for name, value in os.environ.items() if name != "CELERY_SKIP_CHECKS"
    }
    ended = subprocess.run(
        [sys.executable, "-c", START],
        env=environment,
        cwd=settings.BASE_DIR,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(ended.stdout.split())


def test_a_worker_does_not_load_the_page_and_the_api(loaded: set[str]) -> None:
    assert "work.host" in loaded
    assert loaded.isdisjoint({"config.urls", "config.api", "ninja"})


def test_a_worker_does_not_load_the_parser_of_answers(loaded: set[str]) -> None:
    assert "turns.schemas" in loaded
    assert loaded.isdisjoint({"markdown_it", "nh3"})


def test_garbage_is_collected_but_not_looked_for_in_what_was_loaded() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100_000
