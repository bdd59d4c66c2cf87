"""The index over a manifest's vectors: when it is made, replaced and dropped."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from django.db import connection

from semantic import bounds, indexes, transitions, upkeep
from semantic.models import Manifest
from tests.support.embedding import ScriptedEmbedder, active, begun, said, worker_for

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def manifest() -> Manifest:
    """A manifest with the vectors of three messages of one person."""
    embedder = ScriptedEmbedder()
    manifest = active(embedder)
    said("one", "two", "three")
    asyncio.run(worker_for(embedder).drain())
    return manifest


def uses_index(manifest: Manifest) -> bool:
    """Return whether a search of this manifest's vectors may walk its index."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off; SET enable_sort = off")
        cursor.execute(
            f"EXPLAIN SELECT id FROM semantic_embedding WHERE manifest_id = {manifest.pk} "
            f"ORDER BY vector::vector({manifest.dimensions}) "
            f"<=> array_fill(1, ARRAY[{manifest.dimensions}])::vector LIMIT 1"
        )
        plan = "".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan; RESET enable_sort")
    return indexes.index_name(manifest.pk) in plan


def test_an_index_is_made_once_and_searches_may_use_it(manifest: Manifest) -> None:
    assert not indexes.is_built(manifest)
    assert not uses_index(manifest)
    assert indexes.build_index(manifest)
    assert indexes.is_built(manifest)
    assert uses_index(manifest)
    assert indexes.build_index(manifest)


def test_it_is_wanted_once_someone_has_more_vectors_than_are_compared_one_by_one(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert upkeep.to_index() == []
    monkeypatch.setattr(bounds, "EXACT_MAX_VECTORS", 3)
    assert upkeep.to_index() == []
    monkeypatch.setattr(bounds, "EXACT_MAX_VECTORS", 2)
    assert upkeep.to_index() == [manifest]
    indexes.build_index(manifest)
    assert upkeep.to_index() == []


def test_a_build_that_was_cut_short_is_replaced(manifest: Manifest) -> None:
    indexes.build_index(manifest)
    name = indexes.index_name(manifest.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = %s::regclass", [name]
        )
    assert not indexes.is_built(manifest)
    assert indexes.build_index(manifest)
    assert indexes.is_built(manifest)


def test_one_process_builds_at_a_time(manifest: Manifest, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [indexes.LOCK_KEY])
        assert not indexes.build_index(manifest)
        assert not indexes.is_built(manifest)
        assert not indexes.drop_index(manifest)
    assert indexes.build_index(manifest)


def test_the_index_of_a_retired_manifest_is_dropped(manifest: Manifest) -> None:
    indexes.build_index(manifest)
    assert indexes.left_over() == []
    embedder = ScriptedEmbedder()
    rebuilt = begun(embedder)
    asyncio.run(worker_for(embedder).drain())
    assert transitions.activate_when_complete(rebuilt.pk)
    (left,) = indexes.left_over()
    assert left.pk == manifest.pk
    assert indexes.drop_index(left)
    assert indexes.left_over() == []
    assert indexes.drop_index(left)
