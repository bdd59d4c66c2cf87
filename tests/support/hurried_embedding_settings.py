"""The settings of a worker that gives an embedding service up after a second."""

from config.settings import *  # noqa: F403
from semantic import bounds

# An embedder's own clock stops first, as with the real ones. The lease stays as it is.
bounds.PROVIDER_TIMEOUT_SECONDS = 2  # type: ignore[misc]
bounds.EMBEDDER_TIMEOUT_SECONDS = 1.0  # type: ignore[misc]
