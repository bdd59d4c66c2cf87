"""A manifest that answers, and the next one."""

from __future__ import annotations

import pytest

from semantic.models import Manifest
from tests.semantic.swapping import NEXT, claimed, complete
from tests.support.embedding import (
    ScriptedEmbedder,
    active,
    begun,
    said,
)


@pytest.fixture
def old() -> Manifest:
    """The manifest that answers, with the vector of one message."""
    manifest = active(ScriptedEmbedder())
    said("there before")
    complete(manifest, *claimed(manifest))
    return manifest


@pytest.fixture
def new(old: Manifest) -> Manifest:
    """The next one, which has derived that message too."""
    manifest = begun(ScriptedEmbedder(identity=NEXT))
    complete(manifest, *claimed(manifest))
    return manifest
