"""Where jobs may work, and what they may do there."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery.constraints import json_at_most
from recovery.triggers import refuse_change
from work import bounds

ROOTS_MAX_BYTES: Final = bounds.ROOTS_PER_COMPUTER * (bounds.ROOT_MAX_BYTES + 8)


class Computer(models.Model):
    """Directories of one machine that a person's jobs may work in.

    `host_id` says on which machine a worker must run to reach them. `tier` is how far a job may
    go: `probe` reads, `curated` edits inside the roots and runs the listed `checks`, `shell`
    runs any command. `checks` maps a name to the command it stands for, a list of words. All of
    it may change at any time; a job keeps what was true at its admission.
    """

    class Tier(models.TextChoices):
        PROBE = "probe"
        CURATED = "curated"
        SHELL = "shell"

    person = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    name = models.CharField(max_length=bounds.COMPUTER_NAME_MAX_CHARS)
    host_id = models.CharField(max_length=64)
    roots = models.JSONField()
    tier = models.CharField(max_length=16, choices=Tier.choices, default=Tier.CURATED)
    checks = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(tier__in=["probe", "curated", "shell"]),
                name="work_computer_tier_known",
            ),
            models.CheckConstraint(
                condition=json_at_most("roots", ROOTS_MAX_BYTES)
                & json_at_most("checks", bounds.CHECKS_MAX_BYTES),
                name="work_computer_lists_bounded",
            ),
            models.UniqueConstraint(
                fields=["person", "name"],
                condition=Q(revoked_at__isnull=True),
                name="work_computer_one_per_name",
            ),
            # what a job's computer and person refer to together
            models.UniqueConstraint(fields=["id", "person"], name="work_computer_of_person"),
        ]
        indexes = [
            # a person's computers
            models.Index(fields=["person", "id"], name="work_computer_in_order"),
        ]
        triggers = [
            refuse_change("work_computer", "identity_is_fixed", ["person_id", "host_id"]),
        ]

    def __str__(self) -> str:
        return f"computer {self.pk}"
