"""Real workers, a scripted model service and a webhook sink, each a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from recovery.hosts import host_id
from tests.factories import ComputerFactory
from tests.simulators import client
from tests.simulators.client import Simulator
from tests.support.worker import WorkerStarter, workers
from tests.work.coding.repositories import PersonsRepository
from work.models import Computer


@pytest.fixture(scope="session")
def model_process() -> Iterator[Simulator]:
    """A scripted model service that outlives every worker, for the whole run."""
    with client.as_process("responses") as simulator:
        yield simulator


@pytest.fixture(scope="session")
def sink_process() -> Iterator[Simulator]:
    """A receiver of webhooks that counts what it was sent."""
    with client.as_process("sink") as simulator:
        yield simulator


@pytest.fixture
def model(model_process: Simulator) -> Simulator:
    model_process.reset()
    return model_process


@pytest.fixture
def sink(sink_process: Simulator) -> Simulator:
    sink_process.reset()
    return sink_process


@pytest.fixture
def start_worker(
    process_environment: dict[str, str], model: Simulator, tmp_path: Path
) -> Iterator[WorkerStarter]:
    """Start real workers on this test's database."""
    environment = {
        **process_environment,
        "LLM_API": "responses",
        "LLM_BASE_URL": model.base_url,
        "LLM_MODEL": "scripted",
    }
    with workers(environment, tmp_path) as starter:
        yield starter


@pytest.fixture
def repository(tmp_path: Path) -> PersonsRepository:
    """A person's repository with one commit."""
    made = PersonsRepository(tmp_path / "repository")
    made.commit({"a.txt": "one\n"}, "First")
    return made


@pytest.fixture
def computer(
    repository: PersonsRepository,
    process_environment: dict[str, str],
    settings: Settings,
) -> Computer:
    """The machine of the workers that this test starts."""
    settings.HOLDFAST_HOME = process_environment["HOLDFAST_HOME"]
    checks = {"count": ["/bin/sh", "-c", "echo once >> runs; exec sleep 600"]}
    return ComputerFactory.create(roots=[str(repository.top)], checks=checks, host_id=host_id())
