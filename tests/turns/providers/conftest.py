"""A scripted service in a thread and the adapters pointed at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.simulators.client import Simulator, in_thread
from turns.providers.chat import ChatProvider
from turns.providers.responses import ResponsesProvider


@pytest.fixture(scope="session")
def running_service() -> Iterator[Simulator]:
    with in_thread() as service:
        yield service


@pytest.fixture
def service(running_service: Simulator) -> Simulator:
    """A scripted service without memory of other tests."""
    running_service.reset()
    return running_service


@pytest_asyncio.fixture
async def provider(service: Simulator) -> AsyncIterator[ResponsesProvider]:
    """The adapter, with limits short enough for a test to wait them out."""
    adapter = ResponsesProvider(
        base_url=service.base_url, api_key="key", connect_seconds=2, idle_seconds=0.5
    )
    yield adapter
    await adapter.aclose()


@pytest_asyncio.fixture
async def chat(service: Simulator) -> AsyncIterator[ChatProvider]:
    """The chat adapter, with the same limits."""
    adapter = ChatProvider(
        base_url=service.base_url, api_key="key", connect_seconds=2, idle_seconds=0.5
    )
    yield adapter
    await adapter.aclose()
