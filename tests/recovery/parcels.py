"""A kind of owned row that exists in tests alone: parcels of a depot, with labels as children.

It has the columns, constraints and triggers every owned row has, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final
from uuid import uuid4

from django.apps.registry import Apps
from django.db import connection, models

from recovery.constraints import fence_presented, lifecycle_constraints
from recovery.fences import NEXT_MARK_SQL, claimed_mark
from recovery.lifecycles import Lifecycle
from recovery.models import Action
from recovery.runner import Orphan, Settled
from recovery.triggers import child_row_triggers, owned_row_triggers
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


class Depot(Place):
    class Meta:
        apps = _registry
        app_label = "parcels"


class Parcel(OwnedRow):
    depot = models.ForeignKey(Depot, on_delete=models.CASCADE)
    depot_id: int

    class Meta:
        apps = _registry
        app_label = "parcels"
        constraints = [
            *lifecycle_constraints(
                "parcels_parcel", PARCEL, silent=["completed"], spoken=["interrupted", "failed"]
            ),
            fence_presented("parcels_parcel"),
        ]


class Label(ChildRow):
    parcel = models.ForeignKey(Parcel, on_delete=models.CASCADE)
    state = models.CharField(max_length=16, default="open")

    class Meta:
        apps = _registry
        app_label = "parcels"
        constraints = lifecycle_constraints("parcels_label", LABEL)


TRIGGERS: Final[TriggersOf] = {
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


def parcel_tables() -> AbstractContextManager[None]:
    """Create the tables with their triggers; drop them afterwards."""
    return tables((Depot, Parcel, Label), TRIGGERS)


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
    now, deadline_at, queue_deadline_at, next_dispatch_at = now_and_after(
        deadline_seconds, queue_seconds, dispatch_seconds
    )
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


class ParcelRecovery(RememberingRecovery):
    """Interrupts parcels. A parcel addressed to `poison` makes it raise."""

    kind: ClassVar[str] = "parcels"
    model = Parcel
    parent = "depot"

    def __init__(self) -> None:
        super().__init__()
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


def states() -> dict[int, str]:
    """Return the state of each parcel."""
    return dict(Parcel.objects.values_list("pk", "state"))
