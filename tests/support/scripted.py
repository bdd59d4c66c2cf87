"""Fixtures: a scripted model service and a webhook sink, in threads of the test process.

Import them in a conftest: `from tests.support.scripted import *`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.client import Simulator, in_thread
from tests.simulators.responses_wire import answer

__all__ = ["model", "running_model", "running_sink", "sink"]


@pytest.fixture(scope="session")
def running_model() -> Iterator[Simulator]:
    """A model service that answers "Hello there." when nothing else is scripted."""
    with in_thread(answer("Hello", " there.", repeat=True)) as service:
        yield service


@pytest.fixture
def model(running_model: Simulator) -> Simulator:
    """The model service, without memory of other tests."""
    running_model.reset()
    return running_model


@pytest.fixture(scope="session")
def running_sink() -> Iterator[Simulator]:
    """A receiver of webhooks that answers 200."""
    with in_thread() as service:
        yield service


@pytest.fixture
def sink(running_sink: Simulator) -> Simulator:
    """The receiver, without memory of other tests."""
    running_sink.reset()
    return running_sink
