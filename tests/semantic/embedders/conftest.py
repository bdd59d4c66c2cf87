"""A scripted embedding service in a thread, and the embedder pointed at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from semantic.embedders.openai import OpenAIEmbedder
from tests.semantic.embedders.asking import IMPATIENT_SECONDS, embedder_of
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator, in_thread


@pytest.fixture(scope="session")
def running_service() -> Iterator[Simulator]:
    with in_thread(wire.computed) as service:
        yield service


@pytest.fixture
def service(running_service: Simulator) -> Simulator:
    """A scripted service without memory of other tests, which computes beyond its script."""
    running_service.reset()
    return running_service


@pytest_asyncio.fixture
async def embedder(service: Simulator) -> AsyncIterator[OpenAIEmbedder]:
    """The adapter, with a clock that nothing on a busy machine reaches."""
    adapter = embedder_of(service)
    yield adapter
    await adapter.aclose()


@pytest_asyncio.fixture
async def impatient(service: Simulator) -> AsyncIterator[OpenAIEmbedder]:
    """The adapter, with a clock short enough for a test to wait it out."""
    adapter = embedder_of(service, timeout_seconds=IMPATIENT_SECONDS)
    yield adapter
    await adapter.aclose()
