"""A real server that speaks the protocol in its own way: llama.cpp in embedding mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from semantic.embedders.embedder import Identity
from semantic.embedders.openai import OpenAIEmbedder
from tests.semantic.embedders.asking import ask
from tests.simulators.client import ROOT
from tests.simulators.llama_embeddings import DIMENSIONS, KEY, MODEL, TEXT_MAX_TOKENS


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.simulators.llama_embeddings"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield f"{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


def embedder_at(base_url: str, key: str = KEY, dimensions: int = DIMENSIONS) -> OpenAIEmbedder:
    identity = Identity("openai", MODEL, "", dimensions)
    return OpenAIEmbedder(identity, base_url=base_url, api_key=key)


@pytest_asyncio.fixture
async def embedder(base_url: str) -> AsyncIterator[OpenAIEmbedder]:
    adapter = embedder_at(base_url)
    yield adapter
    await adapter.aclose()


def test_it_says_how_long_its_vectors_are(base_url: str) -> None:
    assert embedder_at(base_url, dimensions=8).learn_dimensions() == DIMENSIONS


async def test_each_text_has_its_own_vector(embedder: OpenAIEmbedder) -> None:
    texts = ["a red boat", "the law of large numbers", "a red boat"]
    asked = await ask(embedder, [*texts, " "])
    assert asked.codes == ["", "", "", "text_not_embeddable"]
    first, second, third = asked.outcomes[:3]
    assert first == pytest.approx(third, abs=1e-3)
    assert abs(first @ third) > abs(first @ second)  # type: ignore[operator]


async def test_a_text_that_is_too_long_for_it_fails_alone(embedder: OpenAIEmbedder) -> None:
    """It answers 500 for the whole batch."""
    long = "word " * (2 * TEXT_MAX_TOKENS)
    asked = await ask(embedder, ["one", "two", long, "three", "four"])
    assert asked.codes == ["", "", "provider_rejected", "", ""]


async def test_a_wrong_key_is_named_as_such(base_url: str) -> None:
    embedder = embedder_at(base_url, "wrong")
    asked = await ask(embedder, ["one"])
    await embedder.aclose()
    assert asked.code == "provider_auth"


async def test_vectors_of_another_length_than_agreed_are_refused(base_url: str) -> None:
    embedder = embedder_at(base_url, dimensions=8)
    asked = await ask(embedder, ["one"])
    await embedder.aclose()
    assert asked.code == "provider_protocol"
