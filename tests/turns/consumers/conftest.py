"""A turn to look at, and the one reader of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from channels.layers import get_channel_layer

from tests.factories import TurnFactory
from tests.turns.consumers.commits import bearer
from turns import live
from turns.models import Turn


@pytest.fixture(autouse=True)
async def reader() -> AsyncIterator[live.Reader]:
    yield live.start()
    await live.stop()
    if hasattr(layer := get_channel_layer(), "close"):
        await layer.close()


@pytest.fixture
def turn() -> Turn:
    """A running turn of which a provider was asked an answer."""
    turn = TurnFactory(running=True, asked=True)
    assert turn.conversation.owner.is_active  # and is read: a loop may not
    return turn


@pytest.fixture
def token(turn: Turn) -> dict[str, str]:
    """The header that shows the turn's own person."""
    return bearer(turn.conversation.owner_id)
