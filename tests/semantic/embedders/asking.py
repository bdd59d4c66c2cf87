"""Asks an embedder, and sees what came of it, what was logged and what was really sent."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest

from recovery.errors import ErrorCode, ProviderFailed
from semantic.embedders.embedder import Embedder, Identity, Purpose, Vector
from semantic.embedders.openai import OpenAIEmbedder
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator

MODEL: Final = "scripted-embeddings"
KEY: Final = "sk-canary-key"
# A clock that nothing on a busy machine reaches, and one that a test waits out.
PATIENT_SECONDS: Final = 60.0
IMPATIENT_SECONDS: Final = 1.0
# What a scripted service repeats in everything it says about failures.
CANARY: Final = "canary sentence about a private matter sk-canary-key http://x/?key=canary-url"
FRAGMENTS: Final = (CANARY[:12], KEY, "canary-url", "private matter")


def embedder_of(service: Simulator, **options: Any) -> OpenAIEmbedder:
    """Return an embedder that asks `service`."""
    dimensions = options.pop("dimensions", wire.DIMENSIONS)
    identity = Identity(
        "openai",
        MODEL,
        "",
        dimensions,
        query_prefix=options.pop("query_prefix", ""),
        passage_prefix=options.pop("passage_prefix", ""),
    )
    options = {"timeout_seconds": PATIENT_SECONDS, "api_key": KEY, **options}
    return OpenAIEmbedder(identity, base_url=service.base_url, **options)


@dataclass(frozen=True, slots=True)
class Asked:
    """What came out of one call: outcomes, or the failure of all."""

    outcomes: Sequence[Vector | ErrorCode] = ()
    failure: ProviderFailed | None = None

    @property
    def code(self) -> str:
        assert self.failure is not None
        return self.failure.code.value

    @property
    def codes(self) -> list[str]:
        """The code of each text, empty where it has its vector."""
        return [
            outcome.value if isinstance(outcome, ErrorCode) else "" for outcome in self.outcomes
        ]


async def ask(
    embedder: Embedder, texts: Sequence[str], purpose: Purpose = Purpose.PASSAGE
) -> Asked:
    """Return what `embedder` makes of `texts`, every vector checked."""
    try:
        outcomes = await embedder.embed(texts, purpose)
    except ProviderFailed as failure:
        return Asked(failure=failure)
    assert len(outcomes) == len(texts)
    for outcome in outcomes:
        if not isinstance(outcome, ErrorCode):
            assert outcome.dtype == np.float32
            assert outcome.shape == (embedder.identity.dimensions,)
            assert np.linalg.norm(outcome) == pytest.approx(1, abs=1e-5)
    return Asked(outcomes)


def sent(service: Simulator) -> list[list[str]]:
    """Return the texts of each request, in order."""
    return [request.json["input"] for request in service.requests()]


def require_private(asked: Asked, capture: pytest.CaptureFixture[str]) -> None:
    """Fail if the canary left the adapter in a failure, its chain, or a log.

    The log says instead which model failed, with what status, code and reason.
    """
    heard = capture.readouterr()
    lines = [json.loads(line) for line in heard.err.splitlines() if "provider.failed" in line]
    assert len(lines) == 1
    assert lines[0]["model"] == MODEL
    said = [heard.err, heard.out, repr(asked.outcomes)]
    failure = asked.failure
    if failure is not None:
        assert lines[0]["error_code"] == failure.code
        assert lines[0]["status"] == failure.http_status
        assert lines[0]["reason"] == failure.reason
        assert failure.__context__ is None
        assert failure.__cause__ is None
        said += [*traceback.format_exception(failure), repr(vars(failure)), str(failure.args)]
    for fragment in FRAGMENTS:
        assert not any(fragment in text for text in said), fragment
