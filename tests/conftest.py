"""The database of a test run: one migrated template, cloned for each test process."""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker

from config.celery import app as celery_app
from config.settings import hint_scope
from tests.environment import RUN
from tests.support import databases
from tests.support.waiting import untimed

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


def _point_django_at(name: str) -> None:
    connections["default"].close()
    # Hints stay between this process and those it starts on the same database.
    scope = hint_scope(name)
    celery_app.conf.task_default_queue = scope
    if settings.CHANNEL_URL:
        settings.CHANNEL_LAYERS["default"]["CONFIG"]["prefix"] = scope  # type: ignore[index]
    settings.DATABASES["default"]["NAME"] = name
    connections["default"].settings_dict["NAME"] = name


def _migrated_template() -> str:
    """Return the name of the run's template, made by the first process that asks."""
    name = f"holdfast_template_{os.environ[RUN]}"
    done = Path(os.environ["HOLDFAST_HOME"], "template")
    with done.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.read_text():
            databases.create(name)
            _point_django_at(name)
            call_command("migrate", verbosity=0)
            connections.close_all()
            done.write_text(name)
    return name


@pytest.fixture(scope="session")
def migrated_template(django_db_blocker: DjangoDbBlocker) -> str:
    """Return the name of a migrated database to clone; nobody may connect to it."""
    with untimed(), django_db_blocker.unblock():
        return _migrated_template()


@pytest.fixture(scope="session")
def django_db_setup(
    migrated_template: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Give this process a database of its own, cloned from the migrated template."""
    name = f"holdfast_{os.environ[RUN]}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    with databases.clone(migrated_template, name):
        with django_db_blocker.unblock():
            _point_django_at(name)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                TransactionTestCase, "_fixture_teardown", lambda _: databases.empty()
            )
            yield
        with django_db_blocker.unblock():
            connections.close_all()


def pytest_unconfigure() -> None:
    """Remove the run's template where the server outlives the run."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        databases.drop(f"holdfast_template_{os.environ[RUN]}")


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """Return the address of this test's database, for its own processes and connections."""
    return databases.address(str(settings.DATABASES["default"]["NAME"]))


@pytest.fixture
def process_environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a real process on this test's database, with a home of its own.

    The home holds the file broker, so no two tests see each other's hints.
    """
    home = tmp_path / "home"
    home.mkdir()
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "HOLDFAST_HOME": str(home),
        "SECRET_KEY": settings.SECRET_KEY,
    }


PROCESS_TESTS = ("crash", "races", "contract")
PROCESS_FIXTURES = frozenset({"process_environment", "make_installation"})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what CI asks for."""
    group = parser.getgroup("holdfast")
    group.addoption(
        "--production",
        action="store_true",
        help="only process tests, on the services that tests.support.production started",
    )
    group.addoption("--no-skips", action="store_true", help="a skipped test fails the run")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what belongs to the production profile when that is asked for; begin with the slow.

    xdist hands out modules in this order (`--no-loadscope-reorder`). One that waits for the
    death of processes would otherwise come last, and keep one core waiting for it.
    """
    if config.getoption("--production"):
        kept = [item for item in items if _belongs_to_production(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
    seconds: Counter[Path] = Counter()
    for item in items:
        seconds[item.path] += _expected_seconds(item)
    items.sort(key=lambda item: -seconds[item.path])


def _belongs_to_production(item: pytest.Item) -> bool:
    folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
    return folder in PROCESS_TESTS or item.get_closest_marker("production") is not None


def _expected_seconds(item: pytest.Item) -> int:
    """Return about how long a test takes that takes long; the others stay in random order."""
    if item.get_closest_marker("timeout") is not None:
        return 30
    starts_processes = PROCESS_FIXTURES.intersection(item.fixturenames)  # type: ignore[attr-defined]
    return 5 if starts_processes else 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Give up a connection that the last test lost: it must not fail the next one."""
    opened = connections["default"].connection
    if opened is not None and opened.closed:
        connections["default"].in_atomic_block = False
        connections["default"].close()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that skipped something, where that is asked for."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        session.config.getoption("--no-skips")
        and reporter is not None
        and (reporter.stats.get("skipped") or reporter.stats.get("xfailed"))
        and session.exitstatus == pytest.ExitCode.OK
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
