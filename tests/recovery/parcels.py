"""A kind of owned row that exists in tests alone: parcels of a depot, with labels as children.

It has the columns, constraints and triggers every owned row has, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final
from uuid import uuid4

import pgtrigger
from django.apps.registry import Apps
from django.db import connection, models

from recovery.constraints import error_code_field, fence_presented, lifecycle_constraints
from recovery.fences import NEXT_MARK_SQL, claimed_mark
from recovery.lifecycles import Lifecycle
from recovery.models import Action
from recovery.runner import Orphan, Recovery, Settled
from recovery.triggers import child_row_triggers, owned_row_triggers

_registry = Apps()

PARCEL: Final = Lifecycle(
    {
        "queued": frozenset({"running", "interrupted", "failed"}),
        "running": frozenset({"completed", "interrupted", "failed"}),
        "completed": frozenset(),
        "interrupted": frozenset(),
        "failed": frozenset(),
    }
)
LABEL: Final = Lifecycle(
    {
        "open": frozenset({"done", "interrupted"}),
        "done": frozenset(),
        "interrupted": frozenset(),
    }
)


class Depot(models.Model):
    objects: ClassVar[models.Manager[Any]] = models.Manager()
    revision = models.IntegerField(default=0)

    class Meta:
        apps = _registry
        app_label = "parcels"

    def __str__(self) -> str:
        return f"depot {self.pk}"


class Parcel(models.Model):
    objects: ClassVar[models.Manager[Any]] = models.Manager()
    depot = models.ForeignKey(Depot, on_delete=models.CASCADE)
    depot_id: int
    state = models.CharField(max_length=16, default="queued")
    error_code = error_code_field()
    address = models.TextField(default="")
    owner = models.UUIDField(null=True)
    generation = models.IntegerField(default=0)
    write_mark = models.BigIntegerField(default=0)
    deadline_at = models.DateTimeField(null=True)
    queue_deadline_at = models.DateTimeField()
    next_dispatch_at = models.DateTimeField()
    dispatch_count = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        apps = _registry
        app_label = "parcels"
        constraints = [
            *lifecycle_constraints(
                "parcels_parcel", PARCEL, silent=["completed"], spoken=["interrupted", "failed"]
            ),
            fence_presented("parcels_parcel"),
        ]

    def __str__(self) -> str:
        return f"parcel {self.pk}"


class Label(models.Model):
    objects: ClassVar[models.Manager[Any]] = models.Manager()
    parcel = models.ForeignKey(Parcel, on_delete=models.CASCADE)
    generation = models.IntegerField()
    state = models.CharField(max_length=16, default="open")
    text = models.TextField(default="")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        apps = _registry
        app_label = "parcels"
        constraints = lifecycle_constraints("parcels_label", LABEL)

    def __str__(self) -> str:
        return f"label {self.pk}"


TRIGGERS: Final[Mapping[type[models.Model], Sequence[pgtrigger.Trigger]]] = {
    Parcel: owned_row_triggers("parcels_parcel", PARCEL, fixed=["depot_id", "address"]),
    Label: child_row_triggers(
        "parcels_label",
        LABEL,
        fixed=["parcel_id", "generation", "text"],
        parent="parcels_parcel",
        parent_key="parcel_id",
        parent_states=["running"],
    ),
}
TABLES: Final[tuple[type[models.Model], ...]] = (Depot, Parcel, Label)


@contextmanager
def tables(
    models_made: Sequence[type[models.Model]] = TABLES,
    triggers_of: Mapping[type[models.Model], Sequence[pgtrigger.Trigger]] = TRIGGERS,
) -> Iterator[None]:
    """Create the tables with their triggers; drop them afterwards."""
    with connection.schema_editor() as editor:
        for model in models_made:
            editor.create_model(model)
    with connection.cursor() as cursor:
        for model, triggers in triggers_of.items():
            for trigger in triggers:
                cursor.execute(trigger.compile(model).install_sql)  # type: ignore[arg-type]
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            names = ", ".join(model._meta.db_table for model in models_made)
            cursor.execute(f"DROP TABLE {names} CASCADE")


def parcel(
    *,
    state: str = "running",
    owner: Any = None,
    deadline_seconds: float = 600,
    queue_seconds: float = 300,
    dispatch_seconds: float = 5,
    labels: int = 1,
    address: str = "",
    depot: Depot | None = None,
) -> Parcel:
    """Return a parcel; a running one is owned by `owner` (nobody living by default)."""
    running = state == "running"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n, n + make_interval(secs => %s), n + make_interval(secs => %s), "
            "n + make_interval(secs => %s) FROM clock_timestamp() AS n",
            [deadline_seconds, queue_seconds, dispatch_seconds],
        )
        now, deadline_at, queue_deadline_at, next_dispatch_at = cursor.fetchone()
    generation = 1 if running else 0
    row: Parcel = Parcel.objects.create(
        depot=depot or Depot.objects.create(),
        state=state,
        owner=(owner or uuid4()) if running else None,
        generation=generation,
        write_mark=claimed_mark(generation),
        address=address,
        deadline_at=deadline_at if running else None,
        queue_deadline_at=queue_deadline_at,
        next_dispatch_at=next_dispatch_at,
        created_at=now,
    )
    if running:
        Label.objects.bulk_create(Label(parcel=row, generation=1) for _ in range(labels))
    return row


class ParcelRecovery(Recovery):
    """Interrupts parcels. A parcel addressed to `poison` makes it raise."""

    kind: ClassVar[str] = "parcels"
    model = Parcel
    parent = "depot"

    def __init__(self) -> None:
        super().__init__()
        self.published: list[int] = []
        self.dispatched: list[int] = []
        self.batches: list[int] = []

    def settle(self, orphans: Sequence[Orphan]) -> Iterable[Settled]:
        """Interrupt the parcels and their labels."""
        pks = [orphan.pk for orphan in orphans]
        self.batches.append(len(pks))
        if Parcel.objects.filter(pk__in=pks, address="poison").exists():
            raise ValueError("the text of a customer")
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE parcels_label SET state = 'interrupted', finished_at = now() "
                "WHERE parcel_id = ANY(%s) AND state = 'open'",
                [pks],
            )
            for orphan in orphans:
                cursor.execute(
                    "UPDATE parcels_parcel SET state = 'interrupted', error_code = %s, "
                    f"finished_at = now(), write_mark = {NEXT_MARK_SQL} WHERE id = %s",
                    [orphan.cause.value, orphan.pk],
                )
        return [Settled(orphan, Action.INTERRUPTED, orphan.cause.value) for orphan in orphans]

    def publish(self, settled: Sequence[Settled]) -> None:
        """Remember what was published."""
        assert not connection.in_atomic_block
        self.published += [done.orphan.pk for done in settled]

    def dispatch(self, pks: Sequence[int]) -> None:
        """Remember what was dispatched."""
        assert not connection.in_atomic_block
        self.dispatched += pks
