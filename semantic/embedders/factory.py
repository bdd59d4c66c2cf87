"""The embedder that the settings describe, and those of manifests. One of each in a process."""

from __future__ import annotations

import threading
from typing import Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from semantic import bounds
from semantic.embedders import local
from semantic.embedders.embedder import Embedder, Identity
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.wordllama import WordLlamaEmbedder
from semantic.models import Manifest

Local = type[WordLlamaEmbedder] | type[MiniLmEmbedder]
LOCAL: Final[dict[str, Local]] = {
    WordLlamaEmbedder.model: WordLlamaEmbedder,
    MiniLmEmbedder.model: MiniLmEmbedder,
}
# What speaks as OpenAI's service does.
SERVICE: Final = "openai"
# An embedder and the settings it was built from; a changed setting builds another.
_Key = tuple[object, ...]
_lock: Final = threading.Lock()
_built: Final[dict[_Key, Embedder]] = {}
_learnt: Final[dict[_Key, int]] = {}


def from_settings() -> Embedder:
    """Return the embedder of this installation.

    Blocks for one request, at most `bounds.PROVIDER_TIMEOUT_SECONDS`, where a service has to be
    asked how long its vectors are: not for an event loop's thread.

    Raises:
        ImproperlyConfigured: the settings describe none.
        ProviderFailed: the service did not say how long its vectors are.
    """
    match settings.EMBEDDINGS_API:
        case "local":
            embedder = LOCAL.get(settings.EMBEDDINGS_MODEL)
            if embedder is None:
                raise ImproperlyConfigured(
                    f"EMBEDDINGS_MODEL must be one of {', '.join(LOCAL)} where"
                    " EMBEDDINGS_API is local"
                )
            if not embedder.weights.installed:
                raise ImproperlyConfigured(
                    f"EMBEDDINGS_MODEL={embedder.model} needs the package"
                    f" {embedder.weights.package}"
                )
            return _local(embedder, embedder.default_identity())
        case "openai":
            if not settings.EMBEDDINGS_BASE_URL:
                raise ImproperlyConfigured(
                    "EMBEDDINGS_BASE_URL is required: the address of the embedding service"
                )
            if not settings.EMBEDDINGS_MODEL:
                raise ImproperlyConfigured("EMBEDDINGS_MODEL is required: the model to ask")
            return _service(_service_identity(_dimensions()))
        case _:
            raise ImproperlyConfigured("EMBEDDINGS_API must be local or openai")


def for_manifest(manifest: Manifest) -> Embedder | None:
    """Return what computes vectors of `manifest`, None where this process cannot.

    Never waits. A manifest of a service needs a service in the settings, though it may be asked
    for another model by now: the old vectors answer until those of the new one do. One of
    weights on this machine needs their package in the same version, whatever the settings say.
    """
    identity = Identity(
        provider=manifest.provider,
        model=manifest.model,
        version=manifest.version,
        dimensions=manifest.dimensions,
        query_prefix=manifest.query_prefix,
        passage_prefix=manifest.passage_prefix,
    )
    if identity.provider == local.PROVIDER:
        embedder = LOCAL.get(identity.model)
        if embedder is None or not embedder.makes(identity):
            return None
        return _local(embedder, identity)
    configured = (
        identity.provider == SERVICE == settings.EMBEDDINGS_API
        and settings.EMBEDDINGS_BASE_URL
        and (not identity.version or identity.version.isdecimal())
    )
    return _service(identity) if configured else None


def _local(embedder: Local, identity: Identity) -> Embedder:
    with _lock:
        if (identity,) not in _built:
            _built[identity,] = embedder(identity)
        return _built[identity,]


def _service(identity: Identity) -> Embedder:
    from semantic.embedders.openai import OpenAIEmbedder  # noqa: PLC0415 - HTTP, where it is used

    key = (
        identity,
        settings.EMBEDDINGS_BASE_URL,
        settings.EMBEDDINGS_API_KEY,
        bool(settings.EMBEDDINGS_DIMENSIONS),
        settings.EMBEDDINGS_BATCH_ITEMS,
    )
    with _lock:
        if key not in _built:
            _built[key] = OpenAIEmbedder(
                identity,
                ask_dimensions=bool(settings.EMBEDDINGS_DIMENSIONS),
                text_max_bytes=int(identity.version or bounds.EMBEDDED_TEXT_MAX_BYTES),
                batch_items=settings.EMBEDDINGS_BATCH_ITEMS,
                base_url=settings.EMBEDDINGS_BASE_URL,
                api_key=settings.EMBEDDINGS_API_KEY,
            )
        return _built[key]


def _service_identity(dimensions: int) -> Identity:
    """Return what the settings say about the vectors of the service.

    Its `version` is how many bytes of a text are sent, where that is fewer than anywhere else.
    """
    text_bytes = settings.EMBEDDINGS_TEXT_BYTES
    return Identity(
        provider=SERVICE,
        model=settings.EMBEDDINGS_MODEL,
        version="" if text_bytes >= bounds.EMBEDDED_TEXT_MAX_BYTES else str(text_bytes),
        dimensions=dimensions,
        query_prefix=settings.EMBEDDINGS_QUERY_PREFIX,
        passage_prefix=settings.EMBEDDINGS_PASSAGE_PREFIX,
    )


def _dimensions() -> int:
    """Return the dimensions of the configured model: as set, or as the service shows."""
    from semantic.embedders.openai import OpenAIEmbedder  # noqa: PLC0415 - HTTP, where it is used

    if settings.EMBEDDINGS_DIMENSIONS:
        return int(settings.EMBEDDINGS_DIMENSIONS)
    key = (settings.EMBEDDINGS_BASE_URL, settings.EMBEDDINGS_MODEL)
    with _lock:
        learnt = _learnt.get(key)
    if learnt is None:
        learnt = OpenAIEmbedder(
            _service_identity(bounds.DIMENSIONS_MAX),
            base_url=settings.EMBEDDINGS_BASE_URL,
            api_key=settings.EMBEDDINGS_API_KEY,
        ).learn_dimensions()
    if learnt > bounds.DIMENSIONS_MAX:
        raise ImproperlyConfigured(
            f"The vectors of EMBEDDINGS_MODEL have {learnt} dimensions, and at most"
            f" {bounds.DIMENSIONS_MAX} can be searched: set EMBEDDINGS_DIMENSIONS"
        )
    with _lock:
        _learnt[key] = learnt
    return learnt
