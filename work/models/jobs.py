"""The row a runtime owns while it does a delegated job."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import models
from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from recovery.constraints import error_code_field
from recovery.judges import Branch, Lookup, Rules, ending_rules, fresh_rules, judges
from recovery.models import Runtime
from recovery.triggers import (
    FENCE_NOT_PRESENTED,
    SNAPSHOT_IS_OLDER,
    changed,
    refuse_insert,
    refuse_update,
)
from turns.bounds import CLIENT_KEY_MAX_CHARS, MODEL_NAME_MAX_CHARS
from turns.digests import DIGEST_CHARS
from turns.models import Conversation
from work import bounds, lifecycles
from work.models.computers import Computer

# The delegation request: who asked for what, and what was allowed then. It never changes, nor
# does the row become another's.
REQUEST: Final = (
    "id",
    "person_id",
    "conversation_id",
    "kind",
    "goal",
    "context",
    "prompt",
    "computer_id",
    "agent",
    "cwd",
    "host_id",
    "model",
    "wall_clock_seconds",
    "authority",
    "budget",
    "before_message_id",
    "client_key",
    "request_digest",
    "created_at",
)
# What its worker writes as it goes: an external session, a worktree.
WORKSPACE: Final = ("base_commit", "branch")
CHECKPOINT: Final = ("acp_session_id", "acp_cursor", *WORKSPACE)
_SESSION_BOUNDED: Final = (
    f"octet_length(NEW.acp_session_id) > {bounds.ACP_SESSION_ID_MAX_BYTES}"
)
_SILENT: Final = ("completed",)
_SPOKEN: Final = ("failed", "interrupted", "budget_exhausted")
# What a new job may not be: its request never changes, and what else is said here every move
# keeps.
_FRESH: Final[Rules] = {
    **fresh_rules(lifecycles.JOB, silent=_SILENT, spoken=_SPOKEN),
    "fence_presented": FENCE_NOT_PRESENTED,
    "running_is_owned": """
        NEW.state = 'running' AND (NEW.owner IS NULL OR NEW.claim_token IS NULL
            OR NEW.deadline_at IS NULL OR NEW.claimed_at IS NULL OR NEW.generation < 1)""",
    "queued_is_free": """
        NEW.state = 'queued' AND (NEW.owner IS NOT NULL OR NEW.claim_token IS NOT NULL)""",
    "releases_are_of_attempts": """
        NEW.planned_releases < 0 OR NEW.planned_releases > NEW.attempts""",
    "dispatches_are_counted": "NEW.dispatch_count < 0",
    "session_bounded": _SESSION_BOUNDED,
    "kind_has_its_place": """
        NOT (NEW.kind = 'deep_work' AND NEW.host_id = '' AND NEW.computer_id IS NULL
            OR NEW.kind IN ('coding', 'computer') AND NEW.host_id <> ''
                AND NEW.computer_id IS NOT NULL AND NEW.cwd <> '')""",
    "clock_is_the_budgets": """
        NEW.wall_clock_seconds IS DISTINCT FROM (NEW.budget ->> 'wall_clock_seconds')::int
            OR NEW.wall_clock_seconds < 0""",
    "texts_bounded": f"""
        octet_length(NEW.goal) > {bounds.GOAL_MAX_BYTES}
            OR octet_length(NEW.context) > {bounds.CONTEXT_MAX_BYTES}
            OR octet_length(NEW.prompt) > {bounds.PROMPT_MAX_BYTES}
            OR octet_length(NEW.cwd) > {bounds.PATH_MAX_BYTES}""",
    "snapshots_bounded": f"""
        octet_length(NEW.authority::text) > {bounds.AUTHORITY_MAX_BYTES}
            OR octet_length(NEW.budget::text) > {bounds.BUDGET_MAX_BYTES}""",
    # what the computer's row said at admission
    "authority_is_the_computers": Lookup(
        when="NEW.kind <> 'deep_work'",
        wants="""
            SELECT FROM work_computer c WHERE c.id = NEW.computer_id
                AND c.revoked_at IS NULL AND c.host_id = NEW.host_id
                AND NEW.authority -> 'roots' = c.roots
                AND NEW.authority -> 'checks' = c.checks
                AND NEW.authority ->> 'tier' = c.tier AND NEW.authority ->> 'name' = c.name
                AND NEW.authority ->> 'cwd' = NEW.cwd""",
    ),
}
# A job changes hands by a claim or a release, which take the next generation. The wall clock
# starts with the first claim.
_DEADLINE_MOVED: Final = (
    "OLD.deadline_at IS NOT NULL AND OLD.deadline_at IS DISTINCT FROM NEW.deadline_at"
)
_CLAIMED: Final[Rules] = {
    "moves": "OLD.state <> 'queued'",
    "running_is_owned": """
        NEW.owner IS NULL OR NEW.claim_token IS NULL OR NEW.deadline_at IS NULL
            OR NEW.claimed_at IS NULL""",
    "deadline_is_fixed": _DEADLINE_MOVED,
    "claim_is_counted": "NEW.attempts <> OLD.attempts + 1",
    "releases_are_counted": "NEW.planned_releases <> OLD.planned_releases",
    "claimed_on_its_host": Lookup(
        when="NEW.host_id <> ''",
        wants="""
            SELECT FROM recovery_runtime r
                WHERE r.id = NEW.owner AND r.host_id = NEW.host_id""",
    ),
}
_RELEASED: Final[Rules] = {
    "moves": "OLD.state <> 'running' OR NEW.state <> 'queued'",
    "queued_is_free": "NEW.owner IS NOT NULL OR NEW.claim_token IS NOT NULL",
    "deadline_is_fixed": _DEADLINE_MOVED,
    "claim_is_counted": "NEW.attempts <> OLD.attempts",
    "releases_are_counted": "NEW.planned_releases - OLD.planned_releases NOT BETWEEN 0 AND 1",
}
# Everything else leaves it in the same hands; an end does as well.
_KEPT_IN_HAND: Final[Rules] = {
    "fence": "NEW.write_mark = OLD.write_mark",
    "generation": changed(["owner"]),
    "claim_keeps_its_token": changed(["claim_token"]),
    "claim_keeps_its_times": changed(["claimed_at", "deadline_at"]),
    "claim_is_counted": changed(["attempts"]),
    "releases_are_counted": changed(["planned_releases"]),
    "ends": Branch(
        "OLD.state = NEW.state",
        then={"ended_with_its_time": "NEW.finished_at IS NOT NULL"},
        otherwise={
            **ending_rules(lifecycles.JOB, silent=_SILENT, spoken=_SPOKEN),
            "ended_with_its_time": "NEW.finished_at IS NULL",
            "cancel_wins": "NEW.cancel_requested_at IS NOT NULL AND NEW.state <> 'cancelled'",
            # what was begun since its snapshot was taken would not be seen below
            "ends_read_committed": SNAPSHOT_IS_OLDER,
            # looked at when the job is locked: a statement that waited for it saw what was
            # before
            "ends_whole": Lookup(
                wants="""
                    SELECT WHERE NOT EXISTS (SELECT FROM work_workstep s
                            WHERE s.job_id = NEW.id AND s.state IN ('requested', 'running'))
                        AND NOT EXISTS (SELECT FROM work_workproviderstep p
                            WHERE p.job_id = NEW.id AND p.state = 'started')"""
            ),
        },
    ),
}
_MOVED: Final[Rules] = {
    "fence_presented": FENCE_NOT_PRESENTED,
    "end_is_final": "OLD.finished_at IS NOT NULL",
    "dispatches_are_counted": "NEW.dispatch_count < 0",
    "hands": Branch(
        "NEW.generation = OLD.generation",
        then=_KEPT_IN_HAND,
        otherwise={
            "generation": "NEW.generation <> OLD.generation + 1",
            "ended_with_its_time": "NEW.finished_at IS NOT NULL",
            "claim": Branch("NEW.state = 'running'", then=_CLAIMED, otherwise=_RELEASED),
        },
    ),
}
# What is written seldom, beside the moves.
_KEPT: Final = {
    "admission_is_immutable": changed(REQUEST),
    "session_bounded": _SESSION_BOUNDED,
    # the one part of a job that a worker writes as it goes, and only while it runs it
    "checkpoint_is_the_owners": (
        "NOT (OLD.state = 'running' AND NEW.state = 'running' "
        "AND NEW.owner = OLD.owner AND NEW.generation = OLD.generation) "
        f"AND ({changed(CHECKPOINT)})"
    ),
    # an adopter goes on from the same commit, on the same branch
    "workspace_is_fixed": (
        f"(OLD.base_commit <> '' OR OLD.branch <> '') AND ({changed(WORKSPACE)})"
    ),
    "cancel_is_final": (
        "OLD.cancel_requested_at IS NOT NULL AND "
        "OLD.cancel_requested_at IS DISTINCT FROM NEW.cancel_requested_at"
    ),
}


class WorkJobQuerySet(models.QuerySet["WorkJob"]):
    """Questions about jobs."""

    def open(self) -> WorkJobQuerySet:
        """Those that have not ended."""
        return self.filter(finished_at__isnull=True)

    def of_person(self, person_id: int) -> WorkJobQuerySet:
        """Those one person asked for."""
        return self.filter(person_id=person_id)

    def running_in(self, runtime: UUID) -> WorkJobQuerySet:
        """Those one runtime has claimed and not ended."""
        return self.open().filter(state="running", owner=runtime)

    def cancel_requested(self) -> WorkJobQuerySet:
        """Those somebody asked to stop."""
        return self.filter(cancel_requested_at__isnull=False)

    def orphaned(self) -> WorkJobQuerySet:
        """Running ones whose owner is not a living runtime."""
        living = Runtime.objects.living().filter(pk=OuterRef("owner"))
        return self.open().filter(~Exists(living), state="running")


class WorkJob(models.Model):
    """Work a person delegated: what was asked and allowed, who does it, and how it ended.

        queued -> running -> completed | failed | cancelled | interrupted | budget_exhausted

    A job whose worker died is released: queued again, one generation on, so that nothing the
    dead one still sends is taken. The next claim raises the generation once more. `attempts`
    counts claims, `planned_releases` those that a worker gave back itself before it stopped;
    the rest are adoptions. `deadline_at` is set by the first claim and never moves.

    Everything in `REQUEST` is fixed at admission. `acp_session_id` and `acp_cursor` are the
    checkpoint of an external session; `base_commit` and `branch` that of a worktree. Both are
    written under the fence alone, while the job runs.

    `ended_revision` is the revision of the conversation at the end, for live views.
    """

    class Kind(models.TextChoices):
        DEEP_WORK = "deep_work"
        CODING = "coding"
        COMPUTER = "computer"

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"
        BUDGET_EXHAUSTED = "budget_exhausted"

    LIFECYCLE = lifecycles.JOB

    # In the database two foreign keys are of all three: `work_workjob_conversation_of_person`
    # (a conversation refers to its owner) and `work_workjob_computer_of_person`.
    person = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    conversation = models.ForeignKey(
        Conversation,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
        db_constraint=False,
    )
    kind = models.CharField(max_length=16, choices=Kind.choices)
    goal = models.TextField()
    context = models.TextField(blank=True, default="")
    prompt = models.TextField()
    # a computer is revoked, never removed while a job names it
    computer = models.ForeignKey(
        Computer,
        on_delete=models.RESTRICT,
        related_name="+",
        null=True,
        blank=True,
        db_index=False,
        db_constraint=False,
    )
    agent = models.CharField(max_length=bounds.AGENT_MAX_CHARS, blank=True, default="")
    cwd = models.TextField(blank=True, default="")
    # which machine holds the work's local state; empty where any worker may do it
    host_id = models.CharField(max_length=64, blank=True, default="")
    model = models.CharField(max_length=MODEL_NAME_MAX_CHARS)
    wall_clock_seconds = models.IntegerField()
    authority = models.JSONField()
    budget = models.JSONField()
    # the job's tools see the conversation as it was before this message
    before_message_id = models.BigIntegerField()
    client_key = models.CharField(  # noqa: DJ001  null is "no key", which is not unique
        max_length=CLIENT_KEY_MAX_CHARS, null=True, blank=True
    )
    request_digest = models.CharField(max_length=DIGEST_CHARS)

    state = models.CharField(max_length=16, choices=State.choices, default=State.QUEUED)
    error_code = error_code_field()
    owner = models.UUIDField(null=True, blank=True)
    generation = models.IntegerField(default=0)
    claim_token = models.UUIDField(null=True, blank=True)
    write_mark = models.BigIntegerField(default=0)
    attempts = models.SmallIntegerField(default=0)
    planned_releases = models.SmallIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    queue_deadline_at = models.DateTimeField()
    next_dispatch_at = models.DateTimeField()
    dispatch_count = models.SmallIntegerField(default=0)

    acp_session_id = models.TextField(blank=True, default="")
    acp_cursor = models.BigIntegerField(default=0)
    base_commit = models.CharField(max_length=bounds.COMMIT_MAX_CHARS, blank=True, default="")
    branch = models.CharField(max_length=bounds.BRANCH_MAX_CHARS, blank=True, default="")

    created_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    ended_revision = models.BigIntegerField(null=True, blank=True)

    objects = WorkJobQuerySet.as_manager()

    class Meta:
        constraints = [
            # without what has no key: each move of a job writes to every index it is in
            models.UniqueConstraint(
                fields=["conversation", "client_key"],
                condition=Q(client_key__isnull=False),
                name="work_workjob_one_per_client_key",
            ),
        ]
        indexes = [
            # what is claimed, swept and dispatched again, and the limit of active jobs; by what
            # no move changes, so that only the last one writes to it
            models.Index(
                fields=["created_at", "id"],
                condition=Q(finished_at__isnull=True),
                name="work_workjob_live",
            ),
            # a conversation's jobs: the panel, and the cascade
            models.Index(fields=["conversation", "id"], name="work_workjob_in_conversation"),
            # a person's jobs, newest first; the limit of active ones
            models.Index(fields=["person", "-id"], name="work_workjob_of_person"),
            # the jobs of a computer: the restriction of its removal
            models.Index(
                fields=["computer"],
                condition=Q(computer__isnull=False),
                name="work_workjob_on_computer",
            ),
        ]
        triggers = [
            *judges(
                "work_workjob",
                fresh=_FRESH,
                moved=_MOVED,
                kept=_KEPT,
                of=[*REQUEST, *CHECKPOINT, "cancel_requested_at"],
            ),
            # what runs was claimed, and what was given back was released
            refuse_insert(
                "work_workjob",
                "begins_queued",
                "NEW.state <> 'queued' OR NEW.generation <> 0 OR NEW.attempts <> 0 "
                "OR NEW.planned_releases <> 0 OR NEW.dispatch_count <> 0 "
                "OR NEW.claimed_at IS NOT NULL OR NEW.deadline_at IS NOT NULL "
                "OR NEW.base_commit <> '' OR NEW.branch <> '' OR NEW.acp_session_id <> ''",
            ),
            # only a release gives the job a new one; many are released at once
            refuse_update(
                "work_workjob",
                "queue_deadline_is_fixed",
                "NOT (OLD.state = 'running' AND NEW.state = 'queued') "
                f"AND {changed(['queue_deadline_at'])}",
                of=["queue_deadline_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"job {self.pk}"
