"""What tests of a manifest that takes another's place have in common."""

from __future__ import annotations

from typing import Final

from django.db import connection

from semantic import transitions
from semantic.embedders.embedder import Identity
from semantic.models import Manifest
from semantic.transitions import Claim, Derived
from tests.factories import unit_vector

NEXT: Final = Identity("test", "next", "1", 8)


def claimed(manifest: Manifest, count: int = 9) -> list[Claim]:
    return transitions.claim_jobs(manifest.pk, limit=count)


def complete(manifest: Manifest, *claims: Claim) -> None:
    derived = [Derived(claim, unit_vector()) for claim in claims]
    assert len(transitions.persist(manifest.pk, derived).completed) == len(claims)


def later(seconds: float) -> None:
    """Age all that derivation has written by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for table, columns in {
            "semantic_semanticjob": ("created_at", "finished_at", "lease_expires_at"),
            "semantic_manifest": ("created_at", "covered_at"),
            "semantic_embedding": ("created_at",),
        }.items():
            moved = ", ".join(f"{name} = {name} - %(by)s * interval '1 s'" for name in columns)
            cursor.execute(f"UPDATE {table} SET {moved}", {"by": seconds})
        cursor.execute("RESET session_replication_role")
