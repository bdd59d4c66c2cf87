"""Settings and manifests name an embedder; a process has one of each, or none."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django.fixtures import Settings

from recovery.errors import ProviderFailed
from semantic import bounds
from semantic.embedders import factory
from semantic.embedders.embedder import Embedder, Identity
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.wordllama import WordLlamaEmbedder
from semantic.models import Manifest
from tests.semantic.embedders.asking import CANARY, ask, sent
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, error_reply


@pytest.fixture
def remote(settings: Settings, service: Simulator) -> Settings:
    """Settings that name the scripted service."""
    settings.EMBEDDINGS_API = "openai"
    settings.EMBEDDINGS_BASE_URL = service.base_url
    settings.EMBEDDINGS_API_KEY = "key"
    settings.EMBEDDINGS_MODEL = "scripted"
    factory._learnt.clear()
    return settings


def manifest_of(identity: Identity) -> Manifest:
    return Manifest(generation=1, digest=identity.digest, **asdict(identity))


def embed(embedder: Embedder | None, *texts: str) -> list[str]:
    """Return the codes of `texts`, and let the connections go."""
    assert embedder is not None

    async def once() -> list[str]:
        try:
            return (await ask(embedder, texts)).codes
        finally:
            await embedder.aclose()

    return asyncio.run(once())


# settings


def test_the_default_is_wordllama_on_this_machine(settings: Settings) -> None:
    assert (settings.EMBEDDINGS_API, settings.EMBEDDINGS_MODEL) == ("local", "wordllama")
    embedder = factory.from_settings()
    assert isinstance(embedder, WordLlamaEmbedder)
    assert embedder.batch_items == bounds.STATIC_BATCH_ITEMS
    assert embed(embedder, "one", "") == ["", "text_not_embeddable"]


def test_minilm_is_taken_where_it_is_named(settings: Settings) -> None:
    settings.EMBEDDINGS_MODEL = "minilm"
    assert isinstance(factory.from_settings(), MiniLmEmbedder)


def test_the_length_of_a_services_vectors_is_asked_for_once(
    remote: Settings, service: Simulator
) -> None:
    first = factory.from_settings()
    assert first.identity == Identity("openai", "scripted", "", wire.DIMENSIONS)
    assert first.batch_items == 32
    assert factory.from_settings() is first
    assert sent(service) == [["dimensions"]]
    assert "dimensions" not in service.requests()[0].json
    assert service.requests()[0].headers["authorization"] == "Bearer key"


def test_a_length_that_is_set_is_not_asked_for_but_named(
    remote: Settings, service: Simulator
) -> None:
    remote.EMBEDDINGS_DIMENSIONS = 4
    embedder = factory.from_settings()
    assert embedder.identity.dimensions == 4
    assert service.posts == 0
    assert embed(embedder, "one") == [""]
    assert service.requests()[0].json["dimensions"] == 4


def test_prefixes_and_the_cut_are_part_of_what_vectors_are_of(
    remote: Settings, service: Simulator
) -> None:
    plain = factory.from_settings().identity
    remote.EMBEDDINGS_QUERY_PREFIX = "query: "
    remote.EMBEDDINGS_PASSAGE_PREFIX = "passage: "
    remote.EMBEDDINGS_TEXT_BYTES = 64
    embedder = factory.from_settings()
    assert embedder.identity == replace(
        plain, version="64", query_prefix="query: ", passage_prefix="passage: "
    )
    assert embedder.identity.digest != plain.digest
    service.reset()
    embed(embedder, "a" * 100)
    assert sent(service) == [["passage: " + "a" * 64]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"EMBEDDINGS_API": "telepathy"},
        {"EMBEDDINGS_API": "local", "EMBEDDINGS_MODEL": "word2vec"},
        {"EMBEDDINGS_BASE_URL": ""},
        {"EMBEDDINGS_MODEL": ""},
    ],
)
def test_settings_that_name_no_embedder_stop_the_start(
    remote: Settings, wrong: dict[str, str]
) -> None:
    for name, value in wrong.items():
        setattr(remote, name, value)
    with pytest.raises(ImproperlyConfigured, match="EMBEDDINGS_"):
        factory.from_settings()


def test_vectors_that_are_too_long_to_be_searched_stop_the_start(
    remote: Settings, service: Simulator
) -> None:
    service.script(wire.answer([1.0] * 3_072))
    with pytest.raises(ImproperlyConfigured, match="EMBEDDINGS_DIMENSIONS"):
        factory.from_settings()
    # a service that was corrected meanwhile is asked again
    assert factory.from_settings().identity.dimensions == wire.DIMENSIONS


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error_reply(401, message=CANARY), "provider_auth"),
        (error_reply(503, message=CANARY), "provider_unavailable"),
        (Reply([], framing="close", headers={}), "provider_protocol"),
    ],
)
def test_a_service_that_does_not_answer_says_why_and_is_asked_again(
    remote: Settings, service: Simulator, reply: Reply, code: str
) -> None:
    service.script(reply)
    with pytest.raises(ProviderFailed, match=code):
        factory.from_settings()
    assert factory.from_settings().identity.dimensions == wire.DIMENSIONS


# manifests


@pytest.mark.parametrize("kind", [WordLlamaEmbedder, MiniLmEmbedder])
def test_a_manifest_of_weights_here_is_embedded_whatever_the_settings_say(
    remote: Settings, kind: type[WordLlamaEmbedder] | type[MiniLmEmbedder]
) -> None:
    """The old manifest answers while the new one is filled."""
    manifest = manifest_of(kind.default_identity())
    embedder = factory.for_manifest(manifest)
    assert isinstance(embedder, kind)
    assert factory.for_manifest(manifest) is embedder
    assert embedder.identity.digest == manifest.digest


@pytest.mark.parametrize(
    "changed",
    [{"version": "0000.1"}, {"dimensions": 64}, {"model": "other"}, {"provider": "other"}],
)
def test_a_manifest_of_other_weights_has_no_embedder(changed: dict[str, Any]) -> None:
    identity = replace(WordLlamaEmbedder.default_identity(), **changed)
    assert factory.for_manifest(manifest_of(identity)) is None


def test_a_manifest_of_weights_that_are_not_installed_has_no_embedder(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = manifest_of(MiniLmEmbedder.default_identity())
    elsewhere = replace(MiniLmEmbedder.weights, package="no_such_package_here")
    monkeypatch.setattr(MiniLmEmbedder, "weights", elsewhere)
    assert factory.for_manifest(manifest) is None
    settings.EMBEDDINGS_MODEL = "minilm"
    with pytest.raises(ImproperlyConfigured, match="no_such_package_here"):
        factory.from_settings()


def test_a_manifest_of_the_services_model_is_embedded_as_it_says(
    remote: Settings, service: Simulator
) -> None:
    """Its own length, prefixes and cut count, not those of the settings."""
    identity = Identity("openai", "scripted", "64", wire.DIMENSIONS, passage_prefix="p: ")
    embedder = factory.for_manifest(manifest_of(identity))
    assert embed(embedder, "a" * 100) == [""]
    assert sent(service) == [["p: " + "a" * 64]]
    assert factory.for_manifest(manifest_of(identity)) is embedder


def test_a_manifest_of_a_service_answers_while_the_next_is_derived(
    remote: Settings,
) -> None:
    manifest = manifest_of(Identity("openai", "scripted", "", 8))
    assert factory.for_manifest(manifest) is not None
    assert factory.for_manifest(manifest_of(Identity("openai", "scripted", "v", 8))) is None
    assert factory.for_manifest(manifest_of(Identity("openai", "earlier", "", 8))) is not None
    remote.EMBEDDINGS_BASE_URL = ""
    assert factory.for_manifest(manifest) is None
    remote.EMBEDDINGS_BASE_URL, remote.EMBEDDINGS_API = "http://127.0.0.1:9/v1", "local"
    assert factory.for_manifest(manifest) is None


def test_a_changed_key_is_used_at_once(remote: Settings, service: Simulator) -> None:
    manifest = manifest_of(Identity("openai", "scripted", "", wire.DIMENSIONS))
    before = factory.for_manifest(manifest)
    remote.EMBEDDINGS_API_KEY = "another"
    after = factory.for_manifest(manifest)
    assert after is not before
    embed(after, "one")
    assert service.requests()[0].headers["authorization"] == "Bearer another"


def test_many_threads_get_the_same_embedder(remote: Settings, service: Simulator) -> None:
    threads = 16
    together = threading.Barrier(threads)
    manifest = manifest_of(Identity("openai", "scripted", "", wire.DIMENSIONS))
    local = manifest_of(WordLlamaEmbedder.default_identity())
    factory._built.clear()
    found: list[tuple[Embedder | None, ...]] = []

    def work() -> None:
        together.wait()
        found.append(
            (
                factory.for_manifest(manifest),
                factory.for_manifest(local),
                factory.from_settings(),
            )
        )

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(found) == threads
    assert len(set(found)) == 1
    assert found[0][0] is found[0][2]


async def test_a_manifests_embedder_is_found_without_waiting(
    remote: Settings, service: Simulator
) -> None:
    """It may be asked for on an event loop: no request, no weights."""
    manifest = manifest_of(Identity("openai", "never asked", "", 8))
    remote.EMBEDDINGS_MODEL = "never asked"
    local = manifest_of(MiniLmEmbedder.default_identity())
    factory._built.clear()
    assert factory.for_manifest(manifest) is not None
    found = factory.for_manifest(local)
    assert isinstance(found, MiniLmEmbedder)
    assert found._loaded is None
    assert service.posts == 0
