"""Who is alive, and what recovery did about the work of those who are not.

    Runtime           living -> stopped (buried by the sweep, or ended by itself); never back
    Pulse             one row: when the database was last seen, and since when without a gap
    RecoveryEvent     append-only: one row for each time that recovery released an owned row for
                      adoption or ended it, or a stopping worker gave it back
    RecoveryFailure   a row that recovery could not settle yet, and when it tries again
    ReleaseSwitch     open | draining | disabled: whether work of one kind may begin

An orphan is an active owned row without a living runtime row. Nothing recomputes liveness
after a burial.
"""

from __future__ import annotations

import uuid
from typing import Final

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from recovery import bounds
from recovery.constraints import error_code_field, json_at_most
from recovery.errors import ErrorCode
from recovery.triggers import refuse, refuse_change, refuse_update

ROLE_MAX_CHARS: Final = 16
KIND_MAX_CHARS: Final = 16
REASON_MAX_CHARS: Final = 200


class Cause(models.TextChoices):
    """Why recovery took a row up. Each is also the error code of a row that ends for it."""

    RUNTIME_LOST = ErrorCode.RUNTIME_LOST.value, "runtime lost"
    LEASE_EXPIRED = ErrorCode.LEASE_EXPIRED.value, "lease expired"
    RUNTIME_STOPPED = ErrorCode.RUNTIME_STOPPED.value, "runtime stopped"
    DEADLINE_PASSED = ErrorCode.DEADLINE_PASSED.value, "deadline passed"
    NEVER_STARTED = ErrorCode.NEVER_STARTED.value, "never started"
    NOT_ADOPTED = ErrorCode.NOT_ADOPTED.value, "not adopted"


class Action(models.TextChoices):
    """What recovery did with a row."""

    ADOPTED = "adopted"
    INTERRUPTED = "interrupted"
    REDISPATCHED = "redispatched"


class RuntimeQuerySet(models.QuerySet["Runtime"]):
    """Questions about runtimes."""

    def living(self) -> RuntimeQuerySet:
        """Those nobody buried and that did not stop."""
        return self.filter(stopped_at__isnull=True)


class Runtime(models.Model):
    """A process that may own rows, from its registration to its one end.

        living -> stopped

    `lock_key` and `lock_backend_pid` say which session advisory lock proves its life; both
    are empty where only the lease counts. All times are the database's.
    """

    class StopReason(models.TextChoices):
        """How it ended; also the cause of the orphans it leaves."""

        RUNTIME_LOST = Cause.RUNTIME_LOST.value, "runtime lost"
        LEASE_EXPIRED = Cause.LEASE_EXPIRED.value, "lease expired"
        RUNTIME_STOPPED = Cause.RUNTIME_STOPPED.value, "runtime stopped"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    role = models.CharField(max_length=ROLE_MAX_CHARS)
    host_id = models.CharField(max_length=64)
    host = models.CharField(max_length=255)
    pid = models.IntegerField()
    boot_id = models.CharField(max_length=64)
    lock_key = models.BigIntegerField(null=True, blank=True)
    lock_backend_pid = models.IntegerField(null=True, blank=True)
    started_at = models.DateTimeField(db_default=Now())
    renewed_at = models.DateTimeField(db_default=Now())
    lease_expires_at = models.DateTimeField()
    lock_missing_since = models.DateTimeField(null=True, blank=True)
    stopped_at = models.DateTimeField(null=True, blank=True)
    stop_reason = models.CharField(
        max_length=16, choices=StopReason.choices, blank=True, default=""
    )

    objects = RuntimeQuerySet.as_manager()

    class Meta:
        permissions = [("run_recovery", "Can run recovery now")]
        constraints = [
            models.CheckConstraint(
                condition=Q(stopped_at__isnull=True, stop_reason="")
                | Q(
                    stopped_at__isnull=False,
                    stop_reason__in=[
                        Cause.LEASE_EXPIRED.value,
                        Cause.RUNTIME_LOST.value,
                        Cause.RUNTIME_STOPPED.value,
                    ],
                ),
                name="recovery_runtime_stopped_with_reason",
            ),
            models.CheckConstraint(
                condition=Q(lock_key__isnull=True, lock_backend_pid__isnull=True)
                | Q(lock_key__isnull=False, lock_backend_pid__isnull=False),
                name="recovery_runtime_lock_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(lock_missing_since__isnull=True) | Q(lock_key__isnull=False),
                name="recovery_runtime_only_locks_are_missed",
            ),
            models.CheckConstraint(
                condition=Q(role__regex=rf"^[a-z]{{1,{ROLE_MAX_CHARS}}}$"),
                name="recovery_runtime_role_is_a_word",
            ),
        ]
        indexes = [
            # liveness: every living runtime, among thousands of ended ones. No column that a
            # renewal changes is in it, so a renewal stays inside its page.
            models.Index(
                fields=["id"],
                condition=Q(stopped_at__isnull=True),
                name="recovery_runtime_living",
            ),
        ]
        triggers = [
            refuse_update("recovery_runtime", "end_is_final", "OLD.stopped_at IS NOT NULL"),
            refuse_change(
                "recovery_runtime",
                "identity_is_fixed",
                ["id", "role", "host_id", "host", "pid", "boot_id", "started_at"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.pk}"


class Pulse(models.Model):
    """When the database was last seen by a sweep, and since when without a gap. One row.

    Nobody is buried until the database has been seen unbroken for one lease: a restart, a
    failover or an outage shared by all kills nobody who is alive. The update that advances it
    elects one pass a second.
    """

    THE_ROW: Final = 1

    id = models.SmallIntegerField(primary_key=True, default=THE_ROW, editable=False)
    last_at = models.DateTimeField()
    unbroken_since = models.DateTimeField()
    swept_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "pulse"
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="recovery_pulse_is_one_row"),
        ]

    def __str__(self) -> str:
        return "pulse"


class RecoveryEvent(models.Model):
    """What recovery did with one row, written in the transaction that did it. Append-only.

    Where the row goes on, `generation` and `owner` are those it had until then.
    """

    kind = models.CharField(max_length=KIND_MAX_CHARS)
    row_id = models.BigIntegerField()
    cause = models.CharField(max_length=16, choices=Cause.choices)
    action = models.CharField(max_length=16, choices=Action.choices)
    generation = models.IntegerField()
    error_code = error_code_field()
    owner = models.UUIDField(null=True, blank=True)
    detail = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(cause__in=sorted(Cause.values)),
                name="recovery_recoveryevent_cause_known",
            ),
            # Dispatching again is a hint, and leaves its mark on the row alone.
            models.CheckConstraint(
                condition=Q(action=Action.INTERRUPTED.value) & ~Q(error_code="")
                | Q(action=Action.ADOPTED.value, error_code=""),
                name="recovery_recoveryevent_says_how_it_ended",
            ),
            models.CheckConstraint(
                condition=json_at_most("detail", bounds.RECOVERY_DETAIL_MAX_BYTES),
                name="recovery_recoveryevent_detail_bounded",
            ),
        ]
        indexes = [
            # the timeline of one row
            models.Index(fields=["kind", "row_id"], name="recovery_recoveryevent_of_row"),
        ]
        triggers = [
            pgtrigger.Trigger(
                name="append_only",
                when=pgtrigger.After,
                operation=pgtrigger.Update | pgtrigger.Delete,
                func=refuse("recovery_recoveryevent_append_only"),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.row_id} {self.action}"


class RecoveryFailure(models.Model):
    """A row that recovery could not settle: it raised, or another session kept it locked.

    `failed_count` and the back-off keep a poison row out of the others' way until
    `next_retry_at`; `skipped_count` counts passes in a row that found it locked. The entry
    goes when the row is settled.
    """

    kind = models.CharField(max_length=KIND_MAX_CHARS)
    row_id = models.BigIntegerField()
    error_code = error_code_field()
    reason = models.CharField(max_length=REASON_MAX_CHARS, blank=True, default="")
    failed_count = models.PositiveIntegerField(default=0)
    skipped_count = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField(db_default=Now())
    last_at = models.DateTimeField(db_default=Now())
    next_retry_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "row_id"], name="recovery_recoveryfailure_one_per_row"
            ),
            models.CheckConstraint(
                condition=Q(failed_count__gte=1) | Q(skipped_count__gte=1),
                name="recovery_recoveryfailure_counts_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.row_id}"


class ReleaseSwitch(models.Model):
    """Whether new work of one kind may begin. No row means open.

        open <-> draining <-> disabled      (any of them from any other)

    Draining refuses admission; what was admitted goes on. Disabled refuses claims as well;
    what runs goes on. `recovery/switches.py` reads and sets it.
    """

    class State(models.TextChoices):
        OPEN = "open"
        DRAINING = "draining"
        DISABLED = "disabled"

    kind = models.CharField(primary_key=True, max_length=KIND_MAX_CHARS)
    state = models.CharField(max_length=16, choices=State.choices)
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "release switches"
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["disabled", "draining", "open"]),
                name="recovery_releaseswitch_state_known",
            ),
            models.CheckConstraint(
                condition=Q(kind__regex=rf"^[a-z]{{1,{KIND_MAX_CHARS}}}$"),
                name="recovery_releaseswitch_kind_is_a_word",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.state}"
