"""A scripted service in a thread and the adapters pointed at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.simulators.client import Simulator, in_thread
from tests.turns.providers.hearing import IMPATIENT_SECONDS, PATIENT_SECONDS
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
    """The adapter, with limits that no busy machine reaches."""
    adapter = ResponsesProvider(
        base_url=service.base_url,
        api_key="key",
        connect_seconds=PATIENT_SECONDS,
        idle_seconds=PATIENT_SECONDS,
    )
    yield adapter
    await adapter.aclose()


@pytest_asyncio.fixture
async def impatient(service: Simulator) -> AsyncIterator[ResponsesProvider]:
    """The adapter, with an idle limit short enough for a test to wait it out."""
    adapter = ResponsesProvider(
        base_url=service.base_url, api_key="key", idle_seconds=IMPATIENT_SECONDS
    )
    yield adapter
    await adapter.aclose()


@pytest_asyncio.fixture
async def chat(service: Simulator) -> AsyncIterator[ChatProvider]:
    """The chat adapter, with the limits of `provider`."""
    adapter = ChatProvider(
        base_url=service.base_url,
        api_key="key",
        connect_seconds=PATIENT_SECONDS,
        idle_seconds=PATIENT_SECONDS,
    )
    yield adapter
    await adapter.aclose()


@pytest_asyncio.fixture
async def impatient_chat(service: Simulator) -> AsyncIterator[ChatProvider]:
    """The chat adapter, with the limits of `impatient`."""
    adapter = ChatProvider(
        base_url=service.base_url, api_key="key", idle_seconds=IMPATIENT_SECONDS
    )
    yield adapter
    await adapter.aclose()
