"""What an operator sees of derivatives: states, counts and codes, no text and no numbers."""

from __future__ import annotations

import asyncio

import pytest
from django.test import Client
from django.urls import reverse

from semantic.models import Embedding, Manifest, SemanticJob, SemanticReceipt
from tests.factories import UserFactory
from tests.support.embedding import ScriptedEmbedder, active, said, worker_for

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "a very private sentence"
ROWS = (Manifest, SemanticJob, Embedding, SemanticReceipt)


@pytest.fixture
def staff(client: Client) -> Client:
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    return client


@pytest.fixture
def manifest() -> Manifest:
    """A manifest with a message that has its vector, and one that waits."""
    embedder = ScriptedEmbedder()
    manifest = active(embedder)
    said(SECRET)
    asyncio.run(worker_for(embedder).drain())
    said("another")
    return manifest


def page(client: Client, row: object, what: str = "change") -> str:
    name = type(row).__name__.lower()
    arguments = [row.pk] if what == "change" else []  # type: ignore[attr-defined]
    answer = client.get(reverse(f"admin:semantic_{name}_{what}", args=arguments))
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.__name__)
def test_lists_and_pages_show_no_content(
    staff: Client, manifest: Manifest, model: type[Manifest]
) -> None:
    row = model.objects.earliest("pk")
    numbers = [f"{number:.4f}"[:6] for number in Embedding.objects.get().vector]
    for shown in (page(staff, row, "changelist"), page(staff, row)):
        assert SECRET not in shown
        assert not any(number in shown for number in numbers)


@pytest.mark.parametrize("asked", ["1", "abc"])
@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.__name__)
def test_every_list_can_be_searched(
    staff: Client, manifest: Manifest, model: type[Manifest], asked: str
) -> None:
    address = reverse(f"admin:semantic_{model.__name__.lower()}_changelist")
    assert staff.get(address, {"q": asked}).status_code == 200


def test_a_manifests_page_shows_how_far_it_is(staff: Client, manifest: Manifest) -> None:
    assert "1 of 2 messages, 1 waiting or at work, 0 failed" in page(staff, manifest)


@pytest.mark.parametrize("model", ROWS, ids=lambda model: model.__name__)
def test_nothing_can_be_changed_added_or_deleted(
    staff: Client, manifest: Manifest, model: type[Manifest]
) -> None:
    row, name = model.objects.earliest("pk"), model.__name__.lower()
    before = model.objects.count()
    for what, arguments in (("change", [row.pk]), ("add", []), ("delete", [row.pk])):
        address = reverse(f"admin:semantic_{name}_{what}", args=arguments)
        assert staff.post(address, {"state": "retired"}).status_code == 403
    assert model.objects.count() == before
