"""A refused batch is split once, in two; what is refused alone fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from semantic.embedders.openai import REQUESTS_AT_ONCE, OpenAIEmbedder
from tests.semantic.embedders.asking import (
    CANARY,
    IMPATIENT_SECONDS,
    ask,
    embedder_of,
    require_private,
    sent,
)
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, error_reply, hold, json_reply, send

TEXTS = [f"text {at}" for at in range(8)]
POISON = "poison"


def refuse(status: int = 400, text: str = POISON, **error: str) -> Reply:
    """Refuse every request that holds `text`."""
    body = {"error": {"message": CANARY, **error}}
    return json_reply(body, status=status, match=text, repeat=True)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
async def test_a_text_that_is_refused_alone_fails_alone(
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    status: int,
) -> None:
    service.script(refuse(status))
    texts = [*TEXTS[:6], POISON, TEXTS[7]]
    asked = await ask(embedder, texts)
    assert asked.codes == [""] * 6 + ["provider_rejected", ""]
    for text, vector in zip(texts[:6], asked.outcomes, strict=False):
        assert vector == pytest.approx(wire.unit_vector_of(text), abs=1e-6)
    asked_for = sent(service)
    assert asked_for[0] == texts
    assert sorted(asked_for[1:3]) == sorted([texts[:4], texts[4:]])
    assert sorted(asked_for[3:]) == sorted([text] for text in texts[4:])
    require_private(asked, capsys)


async def test_a_text_that_is_too_long_is_named_as_such(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    service.script(refuse(400, code="context_length_exceeded"))
    asked = await ask(embedder, [POISON, "one"])
    assert asked.codes == ["provider_context_exceeded", ""]
    assert sent(service)[0] == [POISON, "one"]
    assert sorted(sent(service)[1:]) == [["one"], [POISON]]


async def test_poison_in_both_halves_costs_no_more_than_three_requests_more(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    service.script(refuse())
    texts = [POISON, *TEXTS[1:7], POISON]
    asked = await ask(embedder, texts)
    assert asked.codes == ["provider_rejected", *[""] * 6, "provider_rejected"]
    assert service.posts == len(texts) + 3


async def test_a_batch_that_was_only_too_large_is_asked_for_in_two(
    service: Simulator, embedder: OpenAIEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script(error_reply(413, message=CANARY))
    asked = await ask(embedder, TEXTS[:5])
    assert asked.codes == [""] * 5
    assert [len(texts) for texts in sorted(sent(service), key=len)] == [2, 3, 5]
    # nothing went wrong that anybody has to read about
    assert "provider.failed" not in capsys.readouterr().err


async def test_a_single_text_is_not_asked_for_again(
    service: Simulator, embedder: OpenAIEmbedder
) -> None:
    for status in (400, 413, 422):
        service.script(error_reply(status))
        assert (await ask(embedder, ["one"])).code == "provider_rejected"
    service.script(error_reply(500))
    assert (await ask(embedder, ["one"])).code == "provider_unavailable"
    assert service.posts == 4


async def test_a_service_that_refuses_every_text_fails_the_batch(
    service: Simulator, embedder: OpenAIEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not like the request, whatever the texts are: nothing else needs to be asked."""
    service.script(refuse(422, "text"))
    asked = await ask(embedder, TEXTS)
    assert asked.code == "provider_rejected"
    assert service.posts == len(TEXTS) + 3
    require_private(asked, capsys)


async def test_a_service_that_breaks_on_both_halves_is_left_alone(
    service: Simulator, embedder: OpenAIEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script(refuse(500, "text"))
    asked = await ask(embedder, TEXTS)
    assert asked.code == "provider_unavailable"
    assert service.posts == 3
    require_private(asked, capsys)


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"code": "model_not_found"}, "provider_not_found"),
        (400, {"code": "invalid_api_key"}, "provider_auth"),
        (400, {"type": "insufficient_quota"}, "provider_quota"),
        (401, {}, "provider_auth"),
        (402, {}, "provider_quota"),
        (403, {}, "provider_forbidden"),
        (404, {}, "provider_not_found"),
        (408, {}, "provider_unavailable"),
        (409, {}, "provider_unavailable"),
        (418, {}, "provider_rejected"),
        (429, {"type": "rate_limit_error"}, "provider_rate_limited"),
        (429, {"code": "insufficient_quota"}, "provider_quota"),
        (501, {}, "provider_unavailable"),
        (502, {}, "provider_unavailable"),
        (503, {}, "provider_unavailable"),
        (504, {}, "provider_unavailable"),
        (202, {}, "provider_protocol"),
    ],
)
async def test_no_other_failure_is_asked_about_again(  # noqa: PLR0917 - pytest names them
    service: Simulator,
    embedder: OpenAIEmbedder,
    capsys: pytest.CaptureFixture[str],
    status: int,
    error: dict[str, str],
    code: str,
) -> None:
    service.script(json_reply({"error": {"message": CANARY, **error}}, status=status))
    asked = await ask(embedder, TEXTS)
    assert (asked.code, asked.failure and asked.failure.http_status) == (code, status)
    assert service.posts == 1
    require_private(asked, capsys)


async def test_after_another_failure_nothing_more_is_asked(
    service: Simulator, embedder: OpenAIEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The texts that had their vectors keep them; the ones still open fail as the service
    did."""
    service.script(error_reply(413), refuse(), error_reply(429, message=CANARY))
    texts = [POISON, *TEXTS[:3]]
    asked = await ask(embedder, texts)
    assert service.posts == 3
    # one half was refused, the other met the limit: there is no vector
    assert asked.code == "provider_rate_limited"
    require_private(asked, capsys)
    service.reset()
    service.script(error_reply(413), refuse(429))
    asked = await ask(embedder, [POISON, *TEXTS[:3]])
    assert asked.codes == ["provider_rate_limited"] * 2 + [""] * 2
    assert service.posts == 3


@pytest_asyncio.fixture
async def less_patient(service: Simulator) -> AsyncIterator[OpenAIEmbedder]:
    """The adapter, with a clock to wait out after much was answered."""
    adapter = embedder_of(service, timeout_seconds=3 * IMPATIENT_SECONDS)
    yield adapter
    await adapter.aclose()


async def test_what_was_answered_before_the_clock_ran_out_counts(
    service: Simulator, less_patient: OpenAIEmbedder, capsys: pytest.CaptureFixture[str]
) -> None:
    service.script(
        error_reply(413),
        Reply([send(b"{"), hold("never")], headers={}, match=POISON),
    )
    asked = await ask(less_patient, ["one", "two", "three", POISON])
    assert asked.codes == ["", "", "provider_timeout", "provider_timeout"]
    require_private(asked, capsys)


async def test_only_a_few_texts_of_a_refused_batch_are_asked_for_at_once(
    service: Simulator, less_patient: OpenAIEmbedder
) -> None:
    service.script(
        error_reply(400),
        error_reply(400),
        error_reply(400),
        Reply((), hold_head="text", match="text", repeat=True),
    )
    asking = asyncio.ensure_future(ask(less_patient, TEXTS))
    await asyncio.to_thread(service.wait_for_gate, "text", REQUESTS_AT_ONCE)
    assert (await asking).code == "provider_timeout"
    assert service.posts == 3 + REQUESTS_AT_ONCE
