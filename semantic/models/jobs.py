"""The intent to derive one message's vector, and who holds it until when."""

from __future__ import annotations

import pgtrigger
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from recovery.constraints import error_code_field, lifecycle_constraints
from recovery.fences import GENERATION_SHIFT_BITS
from recovery.triggers import changed, refuse, refuse_change, refuse_insert, refuse_update
from semantic import bounds, lifecycles
from semantic.models.manifests import Manifest
from semantic.models.scope import OfMessage, is_kept, is_of_its_message
from turns.digests import DIGEST_CHARS

# The lease counts, whoever is alive: only the database's clock says when it is over.
_CLAIMS = "NEW.attempts <> OLD.attempts OR NEW.claim_token IS DISTINCT FROM OLD.claim_token"
_LEASE = f"statement_timestamp() + interval '{bounds.LEASE_SECONDS} seconds'"


def lease_is_over(lease: str) -> str:
    """Return the SQL that says so of a running job's column `lease`, by the database's clock:
    also of a lease that a clock gave which was ahead then and has been put right since."""
    ahead = f"statement_timestamp() + interval '{bounds.LEASE_AHEAD_SECONDS} seconds'"
    return f"({lease} <= statement_timestamp() OR {lease} > {ahead})"


# Judged when the statement ends, which is one with that of the vector. Planned each time: a
# plan kept from when there were few vectors reads all of them for each batch.
_HAS_ITS_VECTOR = f"""
    IF NOT EXISTS (SELECT FROM after_it WHERE state = 'completed') THEN RETURN NULL; END IF;
    EXECUTE $check$
        SELECT EXISTS (
            SELECT FROM after_it n JOIN before_it o ON o.id = n.id
            WHERE n.state = 'completed' AND o.state <> 'completed' AND NOT EXISTS (
                SELECT FROM semantic_embedding e
                WHERE e.conversation_id = n.conversation_id AND e.message_id = n.message_id
                    AND e.manifest_id = n.manifest_id AND e.job_id = n.id
                    AND e.attempt = n.attempts
            )
        )
    $check$ INTO without;
    IF without THEN {refuse("semantic_semanticjob_completes_with_its_vector")} END IF;
    RETURN NULL;
"""  # noqa: S608  names of our own tables


class SemanticJob(OfMessage):
    """One message to be embedded under one manifest, as it was when `digest` was its digest.

        queued -> running -> completed | failed
        queued, running, completed -> invalidated    (the message was edited or removed)

    A claim adds one to `attempts`, draws `claim_token` and sets `lease_expires_at`; another
    claim of a running job is refused until that has passed. `attempts` is the job's fence: its
    high bits stand in `write_mark`, which every write moves (recovery/fences.py), so that the
    holder of an earlier attempt is refused. A job completes only together with its vector.
    After a provider's failure another job, of the next `round`, may follow once `retry_at` has
    come; `retry_at` is cleared when it has, or need not any more. Behind the last round one of
    the first may follow, in a manifest being built (`transitions/giving_up.py`). It goes
    with its message, and that of a retired manifest with its vector, or undone; what ended
    without one stays.
    """

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        INVALIDATED = "invalidated"

    LIFECYCLE = lifecycles.JOB

    # a manifest is never removed, and its foreign key would have every new message lock its row
    manifest = models.ForeignKey(
        Manifest,
        on_delete=models.PROTECT,
        related_name="jobs",
        db_index=False,
        db_constraint=False,
    )
    digest = models.CharField(max_length=DIGEST_CHARS)
    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    error_code = error_code_field()
    round = models.PositiveSmallIntegerField(default=1)
    attempts = models.PositiveSmallIntegerField(default=0)
    write_mark = models.BigIntegerField(default=0)
    claim_token = models.UUIDField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    retry_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            *lifecycle_constraints(
                "semantic_semanticjob",
                lifecycles.JOB_ENDS,
                silent=["queued", "running", "completed", "invalidated"],
                spoken=["failed"],
            ),
            models.CheckConstraint(
                condition=(~Q(state="queued") | Q(lease_expires_at__isnull=True))
                & (~Q(state="running") | Q(lease_expires_at__isnull=False)),
                name="semantic_semanticjob_runs_on_a_lease",
            ),
            models.CheckConstraint(
                condition=Q(retry_at__isnull=True)
                | Q(state="failed", round__lte=bounds.ROUNDS_AFTER_FAILURE),
                name="semantic_semanticjob_retries_bounded",
            ),
            models.CheckConstraint(
                condition=Q(attempts__lte=bounds.ATTEMPTS)
                & Q(round__gte=1, round__lte=bounds.ROUNDS_AFTER_FAILURE + 1),
                name="semantic_semanticjob_attempts_bounded",
            ),
            models.CheckConstraint(
                condition=Q(attempts=F("write_mark").bitrightshift(GENERATION_SHIFT_BITS)),
                name="semantic_semanticjob_fence_presented",
            ),
            models.UniqueConstraint(
                fields=["manifest", "message"],
                condition=Q(state__in=["queued", "running"]),
                name="semantic_semanticjob_one_open",
            ),
        ]
        indexes = [
            # What waits to be claimed, oldest first. An order by id alone is one that the
            # primary key has too, and a planner that believes all to be waiting walks that.
            models.Index(
                fields=["manifest", "created_at", "id"],
                condition=Q(state="queued"),
                name="semantic_job_waiting",
            ),
            # leases, to find those that expired
            models.Index(
                fields=["lease_expires_at"],
                condition=Q(state="running"),
                name="semantic_job_leased",
            ),
            # The jobs of a message: invalidation, and what there was before. Also looked up by
            # the foreign key (conversation, message).
            models.Index(
                fields=["conversation", "message", "manifest"], name="semantic_job_of_message"
            ),
            # failures that another job is to follow
            models.Index(
                fields=["retry_at"],
                condition=Q(retry_at__isnull=False),
                name="semantic_job_to_retry",
            ),
        ]
        triggers = [
            refuse_update("semantic_semanticjob", "fence", "NEW.write_mark = OLD.write_mark"),
            refuse_update(
                "semantic_semanticjob", "moves", lifecycles.JOB.violation_sql(), of=["state"]
            ),
            # all that may still happen: a completed job is invalidated, and a failed one is
            # followed by another
            refuse_update(
                "semantic_semanticjob",
                "end_is_final",
                "OLD.state = 'invalidated' "
                "OR OLD.state = 'completed' AND NEW.state <> 'invalidated' "
                "OR OLD.state = 'failed' AND (OLD.retry_at IS NULL OR NEW.retry_at IS NOT NULL "
                f"OR {changed(['state', 'error_code', 'finished_at'])})",
            ),
            refuse_change(
                "semantic_semanticjob",
                "identity_is_fixed",
                [
                    "manifest_id",
                    "message_id",
                    "conversation_id",
                    "person_id",
                    "digest",
                    "round",
                    "created_at",
                ],
            ),
            # A claim counts, has a token nobody knew and a bounded lease; a running job is
            # claimed only once its lease is over on the database's clock.
            refuse_update(
                "semantic_semanticjob",
                "claim_is_fenced",
                "NOT (NEW.attempts = OLD.attempts + 1 "
                "AND NEW.state = 'running' AND NEW.claim_token IS NOT NULL "
                "AND NEW.claim_token IS DISTINCT FROM OLD.claim_token "
                "AND NEW.lease_expires_at > statement_timestamp() "
                f"AND NEW.lease_expires_at <= {_LEASE} "
                f"AND (OLD.state = 'queued' OR {lease_is_over('OLD.lease_expires_at')})) "
                f"AND ({_CLAIMS})",
                of=["attempts", "claim_token"],
            ),
            # a lease is as long as its claim made it; it is not renewed
            refuse_update(
                "semantic_semanticjob",
                "lease_belongs_to_its_claim",
                "NEW.lease_expires_at IS DISTINCT FROM OLD.lease_expires_at "
                "AND NEW.attempts = OLD.attempts",
                of=["lease_expires_at"],
            ),
            pgtrigger.Trigger(
                name="completes_with_its_vector",
                level=pgtrigger.Statement,
                when=pgtrigger.After,
                operation=pgtrigger.Update,
                referencing=pgtrigger.Referencing(  # type: ignore[no-untyped-call]
                    old="before_it", new="after_it"
                ),
                declare=[("without", "boolean")],
                func=_HAS_ITS_VECTOR,
            ),
            refuse_insert(
                "semantic_semanticjob",
                "begins_queued",
                "NEW.state <> 'queued' OR NEW.attempts <> 0 OR NEW.claim_token IS NOT NULL",
            ),
            is_of_its_message(
                "semantic_semanticjob",
                "m.state <> 'streaming' AND m.digest = f.digest AND p.id = f.manifest_id",
                beside="CROSS JOIN semantic_manifest p",
            ),
            # what became of a message is told by its jobs; those of a retired manifest go
            is_kept(
                "semantic_semanticjob",
                beside="JOIN semantic_manifest p "
                "ON p.id = f.manifest_id AND p.state <> 'retired'",
            ),
        ]

    def __str__(self) -> str:
        return f"semantic job {self.pk}"
