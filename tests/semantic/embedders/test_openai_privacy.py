"""What a service says when it fails stays between it and the adapter.

Rows, logs at every level, what a pass reports, the admin's pages and the commands are looked
through for the key, an address with a key in it, and the person's own words.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import Final

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

from config.logging import configure
from recovery.errors import ProviderFailed
from semantic import transitions
from semantic.embedders import factory
from semantic.embedders.embedder import Purpose
from semantic.models import SemanticJob
from semantic.worker import SemanticWorker
from tests.factories import UserFactory
from tests.simulators import embeddings_wire as wire
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply, close, json_reply, send
from tests.support.embedding import said
from tests.support.unsaid import require_unsaid, rows_beside_what_was_said

pytestmark = pytest.mark.django_db(transaction=True)

KEY: Final = "sk-canary-1234567890"
PROMPT: Final = "Please keep my divorce from Amalberga entirely between the two of us."
SAID: Final = (
    f"Incorrect API key {KEY} at https://canary.example/v1?key={KEY} for the input: {PROMPT}"
)
SECRETS: Final = (SAID, KEY, PROMPT)
JSON: Final = {"Content-Type": "application/json"}

FAILURES: Final[dict[str, tuple[Reply, str]]] = {
    "rejected": (json_reply({"error": {"message": SAID}}, status=400), "provider_rejected"),
    "unauthorised": (json_reply({"error": {"message": SAID}}, status=401), "provider_auth"),
    "unknown": (json_reply({"error": {"code": SAID}}, status=404), "provider_not_found"),
    "limited": (json_reply({"error": SAID}, status=429), "provider_rate_limited"),
    "broken": (json_reply([SAID], status=503), "semantic_provider_offline"),
    "a reason of its own": (
        Reply([send(SAID.encode())], headers={"X-Said": SAID}, status=418),
        "provider_rejected",
    ),
    "after 200": (json_reply({"error": {"message": SAID}}), "provider_failed"),
    "not json": (Reply([send(SAID.encode())], headers=JSON), "provider_protocol"),
    "another form": (json_reply({"data": [{"index": SAID, SAID: SAID}]}), "provider_protocol"),
    "no numbers": (wire.answer([SAID] * wire.DIMENSIONS), "provider_protocol"),
    "no base64": (wire.answer(SAID), "provider_protocol"),
    "cut": (Reply([send(SAID.encode()), close()], headers=JSON), "truncated_stream"),
    "elsewhere": (
        Reply((), status=307, headers={"Location": f"https://canary.example/?key={KEY}"}),
        "provider_protocol",
    ),
}


@pytest.fixture(params=["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The product's own logging, at this level."""
    root = logging.getLogger()
    before = root.level
    configure({"level": request.param})
    yield request.param
    configure(django_settings.LOGGING)
    root.setLevel(before)


@pytest.fixture
def remote(settings: Settings, service: Simulator) -> Settings:
    settings.EMBEDDINGS_API = "openai"
    settings.EMBEDDINGS_BASE_URL = service.base_url
    settings.EMBEDDINGS_API_KEY = KEY
    settings.EMBEDDINGS_MODEL = "scripted"
    settings.EMBEDDINGS_DIMENSIONS = wire.DIMENSIONS
    return settings


def admin_pages(job: SemanticJob) -> str:
    client = Client()
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    pages = [
        reverse("admin:semantic_semanticjob_changelist"),
        reverse("admin:semantic_semanticjob_change", args=[job.pk]),
        reverse("admin:semantic_manifest_changelist"),
        reverse("admin:semantic_manifest_change", args=[job.manifest_id]),
        reverse("admin:semantic_semanticreceipt_changelist"),
    ]
    return "\n".join(client.get(page).content.decode() for page in pages)


def command() -> str:
    out = StringIO()
    with suppress(SystemExit):  # not every message has its vector
        call_command("semantic_status", stdout=out, stderr=out)
    return out.getvalue()


def test_a_service_that_quotes_everything_is_heard_by_nobody(
    remote: Settings,
    service: Simulator,
    level: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """failures H42, H43"""
    manifest = transitions.begin(factory.from_settings().identity)
    transitions.activate_when_complete(manifest.pk)

    async def drain() -> str:
        drained = await SemanticWorker().drain()
        embedder = factory.for_manifest(manifest)
        assert embedder is not None
        await embedder.aclose()
        return repr(drained)

    for reply, code in FAILURES.values():
        service.script(reply)
        said(PROMPT)
        reported = asyncio.run(drain())
        job = SemanticJob.objects.latest("pk")
        assert (job.state, job.error_code) == ("failed", code)
        require_unsaid("what a pass reports", reported, *SECRETS)
    require_unsaid("the rows", rows_beside_what_was_said(), *SECRETS)
    require_unsaid("the admin", admin_pages(job), *SECRETS)
    require_unsaid("the command", command(), *SECRETS)
    heard = capfd.readouterr()
    require_unsaid("the log", heard.err + heard.out, *SECRETS)
    # what an operator needs is there
    lines = [json.loads(line) for line in heard.err.splitlines() if "provider.failed" in line]
    told = [(line["model"], line["error_code"], line["status"]) for line in lines]
    if level in {"ERROR", "CRITICAL"}:
        assert told == []
    else:
        assert len(told) == len(FAILURES)
        assert ("scripted", "provider_rejected", 400) in told
    # and all of it was really asked with the person's words and the key
    assert {request.headers["authorization"] for request in service.requests()} == {
        f"Bearer {KEY}"
    }
    assert all(request.json["input"] == [PROMPT] for request in service.requests())


async def test_an_address_with_a_key_in_it_is_not_repeated(
    remote: Settings, capfd: pytest.CaptureFixture[str]
) -> None:
    """`manage.py check` refuses such an address; who goes on without is not betrayed."""
    remote.EMBEDDINGS_BASE_URL = f"http://me:{KEY}@127.0.0.1:9/v1?key={KEY}"
    embedder = factory.from_settings()
    with pytest.raises(ProviderFailed) as raised:
        await embedder.embed([PROMPT], Purpose.PASSAGE)
    await embedder.aclose()
    told = "".join(traceback.format_exception(raised.value)) + repr(vars(raised.value))
    require_unsaid("the failure", told, *SECRETS)
    heard = capfd.readouterr()
    require_unsaid("the log", heard.err + heard.out, *SECRETS)
