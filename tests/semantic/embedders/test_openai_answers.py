"""What a service answers is checked before a vector of it is used."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from semantic import bounds
from semantic.embedders.embedder import Purpose
from semantic.embedders.openai import OpenAIEmbedder
from tests.semantic.embedders.asking import (
    CANARY,
    KEY,
    MODEL,
    ask,
    embedder_of,
    require_private,
    sent,
)
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, error_reply, json_reply, packed, send

GOOD = [0.5] * wire.DIMENSIONS
DIGITS = "7" * 5_000


def with_first(value: Any) -> list[Any]:
    return [value, *GOOD[1:]]


async def test_each_text_has_its_vector_at_unit_length(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    texts = ["one", "two", "drei", "\u56db", "cinq \U0001f642"]
    asked = await ask(embedder, texts)
    for text, vector in zip(texts, asked.outcomes, strict=True):
        assert vector == pytest.approx(wire.unit_vector_of(text), abs=1e-6)
    (request,) = service.requests()
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.json == {"model": MODEL, "input": texts, "encoding_format": "base64"}


async def test_numbers_and_base64_are_the_same_vector(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    """A service may answer numbers to one who asked for base64, and base64 to another."""
    numbers = wire.vector_of("text")
    service.script(wire.answer(numbers), wire.answer(wire.packed(numbers)))
    first = await ask(embedder, ["text"])
    second = await ask(embedder, ["text"])
    assert first.outcomes[0] == pytest.approx(second.outcomes[0], abs=1e-6)


async def test_the_index_says_which_text_a_vector_is_of(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    texts = ["one", "two", "three"]
    items = [wire.item(at, wire.vector_of(text)) for at, text in enumerate(texts)]
    service.script(json_reply(wire.document(*reversed(items))))
    asked = await ask(embedder, texts)
    for text, vector in zip(texts, asked.outcomes, strict=True):
        assert vector == pytest.approx(wire.unit_vector_of(text), abs=1e-6)


@pytest.mark.parametrize(
    "numbers",
    [with_first(3), [3e38] * wire.DIMENSIONS, [1e-30] * wire.DIMENSIONS],
    ids=["an integer", "large", "small"],
)
async def test_any_finite_length_but_zero_becomes_one(
    service: Simulator, embedder: OpenAIEmbedder, numbers: list[float]
) -> None:
    service.script(wire.answer(numbers))
    asked = await ask(embedder, ["text"])
    assert asked.outcomes[0] == pytest.approx(
        np.array(numbers) / np.linalg.norm(np.array(numbers, np.float64)), abs=1e-6
    )


async def test_texts_without_a_word_are_never_sent(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    asked = await ask(embedder, ["", "one", " \n\t\u2003", "two"])
    assert asked.codes == ["text_not_embeddable", "", "text_not_embeddable", ""]
    assert asked.outcomes[3] == pytest.approx(wire.unit_vector_of("two"), abs=1e-6)
    assert (await ask(embedder, ["", " "])).codes == ["text_not_embeddable"] * 2
    assert (await ask(embedder, [])).outcomes == []
    assert sent(service) == [["one", "two"]]


async def test_queries_and_passages_have_their_own_prefix(service: Simulator) -> None:
    embedder = embedder_of(service, query_prefix="query: ", passage_prefix="passage: ")
    await ask(embedder, ["one", " "], Purpose.QUERY)
    await ask(embedder, ["one"], Purpose.PASSAGE)
    await embedder.aclose()
    assert sent(service) == [["query: one"], ["passage: one"]]


async def test_dimensions_are_named_only_where_a_service_is_to_shorten(
    service: Simulator,
) -> None:
    embedder = embedder_of(service, dimensions=4, ask_dimensions=True)
    asked = await ask(embedder, ["one"])
    await embedder.aclose()
    assert asked.outcomes[0] == pytest.approx(wire.unit_vector_of("one", 4), abs=1e-6)
    assert service.requests()[0].json["dimensions"] == 4


async def test_of_a_long_text_the_beginning_is_sent_in_whole_characters(
    service: Simulator,
) -> None:
    embedder = embedder_of(service, text_max_bytes=5)
    await ask(embedder, ["\u00e4\u00e4\u00e4\u00e4", "short"])
    await embedder.aclose()
    assert sent(service) == [["\u00e4\u00e4", "short"]]


async def test_a_text_that_utf8_does_not_know_is_repaired_not_raised(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    assert (await ask(embedder, ["a\ud800b\x00c"])).codes == [""]
    assert sent(service) == [["a\ufffdb\ufffdc"]]


# the form decides about all


MALFORMED: dict[str, Any] = {
    "an array": [CANARY],
    "text": CANARY,
    "no data": {"object": "list", "detail": CANARY},
    "data that is no list": {"data": CANARY},
    "data of text": {"data": [CANARY, CANARY]},
    "too few": wire.document(wire.item(0, GOOD)),
    "too many": wire.document(*(wire.item(at, GOOD) for at in range(3))),
    "none": wire.document(),
    "an index twice": wire.document(wire.item(0, GOOD), wire.item(0, GOOD)),
    "an index beyond": wire.document(wire.item(0, GOOD), wire.item(2, GOOD)),
    "a negative index": wire.document(wire.item(0, GOOD), wire.item(-1, GOOD)),
    "an index missing": wire.document(wire.item(0, GOOD), {"embedding": GOOD}),
    "an index of text": wire.document(wire.item("0", GOOD), wire.item(1, GOOD)),
    "an index of a float": wire.document(wire.item(0.5, GOOD), wire.item(1, GOOD)),
    "a true index": wire.document(wire.item(0, GOOD), wire.item(True, GOOD)),
    "one shorter": wire.document(wire.item(0, GOOD), wire.item(1, GOOD[1:])),
    "both longer": wire.document(wire.item(0, [*GOOD, 1]), wire.item(1, [*GOOD, 1])),
    "empty vectors": wire.document(wire.item(0, []), wire.item(1, [])),
    "nested": wire.document(wire.item(0, [GOOD]), wire.item(1, [GOOD])),
    "text in a vector": wire.document(wire.item(0, with_first(CANARY)), wire.item(1, GOOD)),
    "numbers as text": wire.document(wire.item(0, with_first("1")), wire.item(1, GOOD)),
    "true in a vector": wire.document(wire.item(0, with_first(True)), wire.item(1, GOOD)),
    "an object": wire.document(wire.item(0, {"0": CANARY}), wire.item(1, GOOD)),
    "no vector": wire.document(wire.item(0, None), wire.item(1, GOOD)),
    "no base64": wire.document(wire.item(0, CANARY), wire.item(1, wire.packed(GOOD))),
    "half a float": wire.document(wire.item(0, "AAAAAAA="), wire.item(1, wire.packed(GOOD))),
    "short base64": wire.document(
        wire.item(0, wire.packed(GOOD[1:])), wire.item(1, wire.packed(GOOD))
    ),
}


@pytest.mark.parametrize("document", MALFORMED.values(), ids=MALFORMED.keys())
async def test_an_answer_of_another_form_fails_the_batch(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    document: Any,
) -> None:
    service.script(json_reply(document))
    asked = await ask(embedder, ["one", "two"])
    assert asked.code == "provider_protocol"
    assert service.posts == 1
    require_private(asked, capsys)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"<html>" + CANARY.encode(),
        b"\xff\xfe" + CANARY.encode(),
        json.dumps(wire.document(wire.item(0, GOOD))).encode()[:-30],
        b'{"data":[{"index":0,"embedding":[NaN,1,1,1,1,1,1,1]}]}',
        b'{"data":[{"index":0,"embedding":[-Infinity,1,1,1,1,1,1,1]}]}',
        b'{"data":[{"index":0,"embedding":[1e999,1,1,1,1,1,1,1]}]}',
        b'{"data":[{"index":0,"embedding":[%s,1,1,1,1,1,1,1]}]}' % DIGITS.encode(),
        b'{"data":[{"index":0,"embedding":[%s,1,1,1,1,1,1,1]}]}' % DIGITS[:400].encode(),
        b"[" * 20_000,
    ],
    ids=[
        "empty", "brace", "html", "not text", "cut", "NaN", "Infinity", "1e999",
        "thousands of digits", "an integer beyond a float", "deep",
    ],
)  # fmt: skip
async def test_what_is_no_json_fails_the_batch(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    body: bytes,
) -> None:
    service.script(Reply([send(body)], headers={"Content-Type": "application/json"}))
    asked = await ask(embedder, ["one"])
    assert asked.code == "provider_protocol"
    require_private(asked, capsys)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error_reply(200, code="invalid_api_key", message=CANARY), "provider_auth"),
        (error_reply(200, kind="insufficient_quota", message=CANARY), "provider_quota"),
        (error_reply(200, message=CANARY), "provider_failed"),
        (json_reply({"error": CANARY}), "provider_failed"),
        (packed(wire.answer(GOOD)), "provider_protocol"),
    ],
    ids=["key", "quota", "no code", "text", "packed"],
)
async def test_an_error_said_with_200_is_a_failure(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    code: str,
) -> None:
    service.script(reply)
    asked = await ask(embedder, ["one"])
    assert asked.code == code
    require_private(asked, capsys)


async def test_vectors_that_change_their_length_between_batches_are_refused(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    assert (await ask(embedder, ["one"])).codes == [""]
    service.script(wire.answer(wire.vector_of("two", wire.DIMENSIONS * 2)))
    asked = await ask(embedder, ["two"])
    assert (asked.code, asked.failure and asked.failure.reason) == (
        "provider_protocol",
        "dimensions",
    )


# numbers decide about one text


@pytest.mark.parametrize(
    "numbers",
    [
        [0] * wire.DIMENSIONS,
        [1e-300] * wire.DIMENSIONS,
        with_first(None),
        with_first(1e39),
        with_first(-1e300),
        wire.packed([0] * wire.DIMENSIONS),
        wire.packed(with_first(float("nan"))),
        wire.packed(with_first(float("-inf"))),
    ],
    ids=[
        "zero", "next to nothing", "null", "1e39", "-1e300", "base64 zero", "base64 NaN",
        "base64 Infinity",
    ],
)  # fmt: skip
async def test_a_vector_without_a_direction_fails_its_text_alone(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    numbers: Any,
) -> None:
    service.script(wire.answer(GOOD, numbers, GOOD))
    asked = await ask(embedder, ["one", "two", "three"])
    assert asked.codes == ["", "provider_protocol", ""]
    require_private(asked, capsys)
    service.script(wire.answer(numbers))
    assert (await ask(embedder, ["two"])).code == "provider_protocol"


# size


async def test_an_answer_is_read_no_further_than_its_vectors_can_be_long(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    body = b" " * 8_000_000
    service.script(Reply([send(body)], headers={}))
    assert (await ask(embedder, ["one"])).code == "response_too_large"
    service.script(Reply([send(body)], headers={}, framing="length"))
    assert (await ask(embedder, ["one"])).code == "response_too_large"


async def test_the_longest_answer_a_service_writes_is_read(service: Simulator) -> None:
    """Every number in full, and all the services' words around it."""
    embedder = embedder_of(service, dimensions=bounds.DIMENSIONS_MAX)
    vectors = [[-0.1234567890123456] * bounds.DIMENSIONS_MAX] * bounds.BATCH_ITEMS
    service.script(wire.answer(*vectors))
    asked = await ask(embedder, [f"text {at}" for at in range(bounds.BATCH_ITEMS)])
    await embedder.aclose()
    assert set(asked.codes) == {""}
