"""A kind of owned row that is adopted, in tests alone: errands of a depot, with legs.

    errand   queued -> running -> completed | cancelled | interrupted
             running -> queued                    released, for another claim
    leg      requested -> running -> done | interrupted

A released errand has no owner and the next generation. Its running legs end, as nobody knows
how they went; its requested legs are re-homed to the new generation, by the release and by the
claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final
from uuid import UUID, uuid4

from django.apps.registry import Apps
from django.db import connection, models, transaction
from django.db.models import Q

from recovery.bounds import ADMISSION_GRACE_SECONDS, ADOPTION_ATTEMPTS
from recovery.constraints import fence_presented, lifecycle_constraints
from recovery.errors import ErrorCode, StaleFence
from recovery.fences import (
    GENERATION_SHIFT_BITS,
    NEXT_MARK_SQL,
    Fence,
    claimed_mark,
)
from recovery.lifecycles import Lifecycle
from recovery.models import Action, Cause
from recovery.runner import Orphan, Settled
from recovery.switches import MAY_CLAIM_SQL
from recovery.triggers import child_row_triggers, owned_row_triggers, refuse_update
from tests.recovery.owned import (
    ChildRow,
    OwnedRow,
    Place,
    RememberingRecovery,
    TriggersOf,
    now_and_after,
    tables,
)

_registry = Apps()

ERRAND: Final = Lifecycle(
    {
        "queued": frozenset({"running", "cancelled", "interrupted"}),
        "running": frozenset({"queued", "completed", "cancelled", "interrupted"}),
        "completed": frozenset(),
        "cancelled": frozenset(),
        "interrupted": frozenset(),
    }
)
LEG: Final = Lifecycle(
    {
        "requested": frozenset({"running", "interrupted"}),
        "running": frozenset({"done", "interrupted"}),
        "done": frozenset(),
        "interrupted": frozenset(),
    }
)
QUEUE_SECONDS: Final = 300
# Why a row ends that nobody claimed in time.
UNCLAIMED: Final = frozenset({Cause.NEVER_STARTED, Cause.NOT_ADOPTED})


class Yard(Place):
    class Meta:
        apps = _registry
        app_label = "errands"


class Errand(OwnedRow):
    yard = models.ForeignKey(Yard, on_delete=models.CASCADE)
    yard_id: int
    host_id = models.CharField(max_length=64)
    claim_token = models.UUIDField(null=True)
    attempts = models.PositiveSmallIntegerField(default=0)
    cancel_requested_at = models.DateTimeField(null=True)

    class Meta:
        apps = _registry
        app_label = "errands"
        constraints = [
            *lifecycle_constraints(
                "errands_errand", ERRAND, silent=["completed"], spoken=["interrupted"]
            ),
            fence_presented("errands_errand"),
            models.CheckConstraint(
                condition=Q(state="running", owner__isnull=False, claim_token__isnull=False)
                | Q(state="queued", owner__isnull=True, claim_token__isnull=True)
                | Q(state__in=sorted(ERRAND.terminal)),
                name="errands_errand_running_is_owned",
            ),
        ]


class Leg(ChildRow):
    errand = models.ForeignKey(Errand, on_delete=models.CASCADE)
    errand_id: int
    write_mark = models.BigIntegerField()
    state = models.CharField(max_length=16, default="requested")

    class Meta:
        apps = _registry
        app_label = "errands"
        constraints = [
            *lifecycle_constraints("errands_leg", LEG),
            fence_presented("errands_leg"),
        ]


TRIGGERS: Final[TriggersOf] = {
    Errand: owned_row_triggers(
        "errands_errand", ERRAND, fixed=["yard_id", "host_id", "address"], adopted=True
    ),
    Leg: [
        *child_row_triggers(
            "errands_leg",
            LEG,
            fixed=["errand_id", "text"],
            parent="errands_errand",
            parent_key="errand_id",
            parent_states=["running"],
        ),
        refuse_update("errands_leg", "fence", "NEW.write_mark = OLD.write_mark"),
        refuse_update(
            "errands_leg",
            "generation",
            "NEW.generation < OLD.generation OR (NEW.generation > OLD.generation "
            "AND NOT (OLD.state = 'requested' AND NEW.state = 'requested'))",
        ),
    ],
}


def errand_tables() -> AbstractContextManager[None]:
    """Create the tables with their triggers; drop them afterwards."""
    return tables((Yard, Errand, Leg), TRIGGERS)


def errand(
    *,
    state: str = "running",
    owner: UUID | None = None,
    attempts: int = 1,
    deadline_seconds: float = 600,
    queue_seconds: float = QUEUE_SECONDS,
    dispatch_seconds: float = ADMISSION_GRACE_SECONDS,
    cancelled: bool = False,
    legs: Sequence[str] = ("requested", "running"),
    address: str = "",
    yard: Yard | None = None,
) -> Errand:
    """Return an errand; a running one is owned by `owner` (nobody living by default)."""
    running = state == "running"
    now, deadline_at, queue_deadline_at, next_dispatch_at = now_and_after(
        deadline_seconds, queue_seconds, dispatch_seconds
    )
    generation = 1 if running else 0
    row: Errand = Errand.objects.create(
        yard=yard or Yard.objects.create(),
        host_id="host",
        state=state,
        owner=(owner or uuid4()) if running else None,
        claim_token=uuid4() if running else None,
        generation=generation,
        write_mark=claimed_mark(generation),
        attempts=attempts if running else 0,
        address=address,
        deadline_at=deadline_at if running else None,
        cancel_requested_at=now if cancelled else None,
        queue_deadline_at=queue_deadline_at,
        next_dispatch_at=next_dispatch_at,
        created_at=now,
    )
    if running:
        Leg.objects.bulk_create(
            Leg(errand=row, generation=1, write_mark=claimed_mark(1), state=leg) for leg in legs
        )
    return row


def fence_of(row: Errand) -> Fence:
    """Return what the claim of `row` gave."""
    assert row.claim_token is not None
    return Fence(row.pk, row.generation, row.claim_token)


# --- the errand's own transitions: yard, errand, legs, in this order --------------------------


def _lock(pk: int) -> Errand:
    yard_id = Errand.objects.values_list("yard_id", flat=True).get(pk=pk)
    Yard.objects.select_for_update(no_key=True).get(pk=yard_id)
    locked: Errand = Errand.objects.select_for_update(no_key=True).get(pk=pk)
    return locked


def _require(fence: Fence) -> Errand:
    row = _lock(fence.pk)
    fence.require(row.generation, row.claim_token)
    if row.state != "running":
        raise StaleFence
    return row


def _end(pks: Sequence[int], state: str, code: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE errands_leg SET state = 'interrupted', finished_at = now(), "
            f"write_mark = {NEXT_MARK_SQL} "
            "WHERE errand_id = ANY(%s) AND state IN ('requested', 'running')",
            [list(pks)],
        )
        cursor.execute(
            "UPDATE errands_errand SET state = %s, error_code = %s, finished_at = now(), "
            f"write_mark = {NEXT_MARK_SQL} WHERE id = ANY(%s)",
            [state, code, list(pks)],
        )


def _rehome(pks: Sequence[int]) -> None:
    """Give requested legs the generation their errand has now, and end running ones."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE errands_leg SET state = 'interrupted', finished_at = now(), "
            f"write_mark = {NEXT_MARK_SQL} WHERE errand_id = ANY(%s) AND state = 'running'",
            [list(pks)],
        )
        cursor.execute(
            "UPDATE errands_leg AS l SET generation = e.generation, "
            f"write_mark = e.generation::bigint << {GENERATION_SHIFT_BITS} "
            "FROM errands_errand AS e WHERE e.id = ANY(%s) AND l.errand_id = e.id "
            "AND l.state = 'requested'",
            [list(pks)],
        )


@transaction.atomic(durable=True)
def claim(pk: int, *, owner: UUID, host_id: str = "host") -> Fence | None:
    """Return the fence of a queued errand that the runtime `owner` now runs, or None."""
    _lock(pk)
    token = uuid4()
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE errands_errand SET state = 'running', owner = %(owner)s, "
            "claim_token = %(token)s, generation = generation + 1, attempts = attempts + 1, "
            f"write_mark = (generation + 1)::bigint << {GENERATION_SHIFT_BITS}, "
            "deadline_at = clock_timestamp() + interval '600 s' "
            "WHERE id = %(pk)s AND state = 'queued' AND cancel_requested_at IS NULL "
            "AND host_id = %(host_id)s AND EXISTS (SELECT FROM recovery_runtime r "
            "WHERE r.id = %(owner)s AND r.stopped_at IS NULL) "
            f"AND {MAY_CLAIM_SQL} RETURNING generation",
            {
                "owner": owner,
                "token": token,
                "pk": pk,
                "host_id": host_id,
                "kind": ErrandRecovery.kind,
            },
        )
        claimed = cursor.fetchone()
    if claimed is None:
        return None
    _rehome([pk])
    return Fence(pk, claimed[0], token)


@transaction.atomic(durable=True)
def cancel(pk: int) -> str:
    """End a queued errand, or ask a running one to stop; return its state before."""
    row = _lock(pk)
    if row.state == "queued":
        _end([pk], "cancelled", ErrorCode.CANCELLED.value)
    elif row.state == "running":
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE errands_errand SET cancel_requested_at = now(), "
                f"write_mark = {NEXT_MARK_SQL} WHERE id = %s",
                [pk],
            )
    return str(row.state)


@transaction.atomic(durable=True)
def request_leg(fence: Fence) -> int:
    """Return the pk of a leg that is to be run."""
    _require(fence)
    leg: Leg = Leg.objects.create(
        errand_id=fence.pk,
        generation=fence.generation,
        write_mark=claimed_mark(fence.generation),
    )
    return int(leg.pk)


@transaction.atomic(durable=True)
def move_leg(fence: Fence, pk: int, state: str) -> None:
    """Start or finish a leg."""
    _require(fence)
    ended = "now()" if state in LEG.terminal else "NULL"
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE errands_leg SET state = %s, finished_at = {ended}, write_mark = "
            f"(%s::bigint << {GENERATION_SHIFT_BITS}) | ((write_mark + 1) & 4294967295) "
            "WHERE id = %s",
            [state, fence.generation, pk],
        )


@transaction.atomic(durable=True)
def finish(fence: Fence) -> None:
    """End the errand on behalf of the generation that still owns it."""
    _require(fence)
    _end([fence.pk], "completed", "")


class ErrandRecovery(RememberingRecovery):
    """Releases errands for another claim. One addressed to `poison` makes it raise."""

    kind: ClassVar[str] = "errands"
    model = Errand
    parent = "yard"

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[int]] = []

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """Release what may be tried again, end the rest."""
        rows = Errand.objects.in_bulk([orphan.pk for orphan in orphans])
        self.batches.append([orphan.pk for orphan in orphans])
        if any(row.address == "poison" for row in rows.values()):
            raise ValueError("the text of a customer")
        settled = [self._judge(orphan, rows[orphan.pk]) for orphan in orphans]
        for done in settled:
            if done.action == Action.INTERRUPTED:
                cancelled = done.error_code == ErrorCode.CANCELLED
                _end(
                    [done.orphan.pk],
                    "cancelled" if cancelled else "interrupted",
                    done.error_code,
                )
        self._release([done.orphan.pk for done in settled if done.action == Action.ADOPTED])
        return settled

    @staticmethod
    def _judge(orphan: Orphan, row: Errand) -> Settled:
        if row.cancel_requested_at is not None:
            return Settled(orphan, Action.INTERRUPTED, ErrorCode.CANCELLED.value)
        if orphan.cause in UNCLAIMED:
            return Settled(orphan, Action.INTERRUPTED, orphan.cause.value)
        if row.attempts >= ADOPTION_ATTEMPTS:
            code = ErrorCode.ADOPTION_ATTEMPTS_EXHAUSTED.value
            return Settled(orphan, Action.INTERRUPTED, code)
        return Settled(orphan, Action.ADOPTED)

    @staticmethod
    def _release(pks: Sequence[int]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE errands_errand SET state = 'queued', owner = NULL, claim_token = NULL, "
                "generation = generation + 1, dispatch_count = 0, deadline_at = NULL, "
                f"write_mark = (generation + 1)::bigint << {GENERATION_SHIFT_BITS}, "
                "queue_deadline_at = clock_timestamp() + make_interval(secs => %s), "
                "next_dispatch_at = clock_timestamp() + make_interval(secs => %s) "
                "WHERE id = ANY(%s)",
                [QUEUE_SECONDS, ADMISSION_GRACE_SECONDS, list(pks)],
            )
        _rehome(pks)

    def intention(self, orphan: Orphan) -> tuple[Action, str]:
        """What a dry run can know without the row: who waited too long ends."""
        if orphan.waiting or orphan.cause in UNCLAIMED:
            return super().intention(orphan)
        return Action.ADOPTED, ""

    def publish(self, settled: Sequence[Settled]) -> None:
        """Remember what was published; hint at what was released."""
        super().publish(settled)
        released = [done.orphan.pk for done in settled if done.action == Action.ADOPTED]
        if released:
            self.dispatch(released)


class EagerRecovery(ErrandRecovery):
    """Makes what it releases due at once, and sends no hint of its own."""

    @staticmethod
    def _release(pks: Sequence[int]) -> None:
        ErrandRecovery._release(pks)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE errands_errand SET next_dispatch_at = now(), "
                f"write_mark = {NEXT_MARK_SQL} WHERE id = ANY(%s)",
                [list(pks)],
            )

    def publish(self, settled: Sequence[Settled]) -> None:
        """Remember what was published."""
        self.published += [done.orphan.pk for done in settled]


def every_errand() -> Iterator[tuple[Any, ...]]:
    """Yield each row with the transaction that wrote it: equal means nothing was written."""
    with connection.cursor() as cursor:
        for table in (
            "errands_yard",
            "errands_errand",
            "errands_leg",
            "recovery_recoveryevent",
        ):
            cursor.execute(f"SELECT t.xmin::text, t::text FROM {table} t ORDER BY t.id")
            yield from cursor.fetchall()
