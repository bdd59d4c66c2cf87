"""What kinds of owned rows that exist in tests alone have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pgtrigger
from django.db import connection, models

from recovery.constraints import error_code_field
from recovery.runner import Recovery, Settled

TriggersOf = Mapping[type[models.Model], Sequence[pgtrigger.Trigger]]


class Place(models.Model):
    """What owned rows belong to, and are locked behind."""

    objects: ClassVar[models.Manager[Any]] = models.Manager()
    revision = models.IntegerField(default=0)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.model_name} {self.pk}"


class OwnedRow(models.Model):
    """The columns that every owned row has. One addressed to `poison` cannot be settled."""

    objects: ClassVar[models.Manager[Any]] = models.Manager()
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
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.model_name} {self.pk}"


class ChildRow(models.Model):
    """The columns that every child of an owned row has."""

    objects: ClassVar[models.Manager[Any]] = models.Manager()
    generation = models.IntegerField()
    text = models.TextField(default="")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self._meta.model_name} {self.pk}"


@contextmanager
def tables(made: Sequence[type[models.Model]], triggers_of: TriggersOf) -> Iterator[None]:
    """Create the tables with their triggers; drop them afterwards."""
    with connection.schema_editor() as editor:
        for model in made:
            editor.create_model(model)
    with connection.cursor() as cursor:
        for model, triggers in triggers_of.items():
            for trigger in triggers:
                cursor.execute(trigger.compile(model).install_sql)  # type: ignore[arg-type]
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            names = ", ".join(model._meta.db_table for model in made)
            cursor.execute(f"DROP TABLE {names} CASCADE")


def now_and_after(*seconds: float) -> list[Any]:
    """Return the database's time, and what it will be after so many seconds each."""
    moments = ", ".join("n + make_interval(secs => %s)" for _ in seconds)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT n, {moments} FROM clock_timestamp() AS n", seconds)
        return list(cursor.fetchone())


class RememberingRecovery(Recovery):
    """Remembers what it has told others, once it was committed."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[int] = []
        self.dispatched: list[int] = []

    def publish(self, settled: Sequence[Settled]) -> None:
        """Remember what was published."""
        assert not connection.in_atomic_block
        self.published += [done.orphan.pk for done in settled]

    def dispatch(self, pks: Sequence[int]) -> None:
        """Remember what was dispatched."""
        assert not connection.in_atomic_block
        self.dispatched += pks
