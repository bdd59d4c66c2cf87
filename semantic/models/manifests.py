"""From what, and by what, vectors are computed."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import lifecycle_constraints
from recovery.triggers import refuse, refuse_change, refuse_insert, refuse_update
from semantic import bounds, lifecycles
from turns.digests import DIGEST_CHARS


class Manifest(models.Model):
    """One way to compute vectors; vectors of two manifests are never compared.

        building -> active -> retired      (building may be retired too)

    `generation` counts manifests from 1. `digest` is that of provider, model, version,
    dimensions and prefixes together: the same digest gives the same vectors. One manifest is
    active and answers; at most one is being built and takes over once it has caught up.

    What is said after it was begun is enqueued by the messages' own triggers. `scanned_to` is
    the id of the last message that was looked at for what they missed, or were not there for;
    `covered_at` says when that look had gone over all of them once: it does not answer before
    each of those is settled (`semantic/transitions/activating.py`). The look goes round for
    ever.
    """

    class State(models.TextChoices):
        BUILDING = "building"
        ACTIVE = "active"
        RETIRED = "retired"

    LIFECYCLE = lifecycles.MANIFEST

    generation = models.PositiveIntegerField(unique=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.BUILDING)
    provider = models.CharField(max_length=16)
    model = models.CharField(max_length=bounds.MODEL_NAME_MAX_CHARS)
    version = models.CharField(max_length=64, blank=True, default="")
    dimensions = models.PositiveIntegerField()
    query_prefix = models.CharField(max_length=bounds.PREFIX_MAX_CHARS, blank=True, default="")
    passage_prefix = models.CharField(
        max_length=bounds.PREFIX_MAX_CHARS, blank=True, default=""
    )
    digest = models.CharField(max_length=DIGEST_CHARS)
    created_at = models.DateTimeField(db_default=Now())
    scanned_to = models.BigIntegerField(default=0)
    covered_at = models.DateTimeField(null=True, blank=True)
    activated_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            *lifecycle_constraints("semantic_manifest", lifecycles.MANIFEST),
            models.CheckConstraint(
                condition=~Q(state="active")
                | Q(activated_at__isnull=False, covered_at__isnull=False),
                name="semantic_manifest_active_since",
            ),
            models.CheckConstraint(
                condition=Q(dimensions__gte=1, dimensions__lte=bounds.DIMENSIONS_MAX),
                name="semantic_manifest_dimensions_bounded",
            ),
            models.UniqueConstraint(
                fields=["state"],
                condition=Q(state="active"),
                name="semantic_manifest_one_active",
            ),
            models.UniqueConstraint(
                fields=["state"],
                condition=Q(state="building"),
                name="semantic_manifest_one_building",
            ),
        ]
        triggers = [
            refuse_update(
                "semantic_manifest",
                "moves",
                lifecycles.MANIFEST.violation_sql(),
                of=["state"],
            ),
            refuse_change(
                "semantic_manifest",
                "identity_is_fixed",
                [
                    "generation",
                    "provider",
                    "model",
                    "version",
                    "dimensions",
                    "query_prefix",
                    "passage_prefix",
                    "digest",
                    "created_at",
                ],
            ),
            refuse_insert("semantic_manifest", "begins_building", "NEW.state <> 'building'"),
            # jobs and vectors name it, and receipts its generation
            pgtrigger.Trigger(
                name="is_kept",
                when=pgtrigger.After,
                operation=pgtrigger.Delete,
                func=refuse("semantic_manifest_is_kept"),
            ),
        ]

    def __str__(self) -> str:
        return f"manifest {self.generation}"
