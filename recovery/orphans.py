"""Rows whose owner is dead or whose time is over: found, locked in order, dispatched again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from django.db import connection, models

from recovery import bounds
from recovery.arrays import array
from recovery.fences import NEXT_MARK_SQL
from recovery.models import Cause
from recovery.switches import MAY_CLAIM_SQL

_LIVING = "SELECT FROM recovery_runtime r WHERE r.id = t.owner AND r.stopped_at IS NULL"
# Where a claim was given back or lost, work was done.
_UNCLAIMED: Final = (
    f"CASE t.generation WHEN 0 THEN '{Cause.NEVER_STARTED.value}' "
    f"ELSE '{Cause.NOT_ADOPTED.value}' END"
)
_CAUSES: Final = {cause.value: cause for cause in Cause}
# An orphan whose cause is not known yet has it from its owner: how that one ended.
_FIND: Final = f"""
    SELECT f.id, f.parent_id, coalesce(f.cause, r.stop_reason, '{Cause.RUNTIME_LOST.value}'),
        f.generation, f.owner::text, f.waiting
    FROM ({{searches}} LIMIT %(limit)s)
        AS f(id, parent_id, cause, generation, owner, waiting)
    LEFT JOIN recovery_runtime r ON r.id = f.owner AND f.cause IS NULL
"""  # noqa: S608  constants


class Orphan(NamedTuple):
    """A row without a living owner or past its time. `waiting`: only dispatch it again.

    A tuple, as a sweep makes tens of thousands of them.
    """

    pk: int
    parent_pk: int | None
    cause: Cause
    generation: int
    owner: UUID | None
    waiting: bool = False


@dataclass(frozen=True)
class OwnedTable:
    """A table of owned rows, and how an orphan is recognised in it.

    An orphan is a row in an owned state whose owner has no living runtime row, or that is
    past `deadline_at` and its grace; or a row in a queued state past `queue_deadline_at`. A
    queued row that is only due for another hint (`next_dispatch_at`) is found too, as
    `waiting`; not while its kind is disabled, so that `resume` finds it due at once.

    Owned rows are found by owner, or with `oldest_first` by age, whichever their index is
    ordered by.
    """

    kind: str
    model: type[models.Model]
    parent: str | None
    owned_states: tuple[str, ...]
    queued_states: tuple[str, ...]
    oldest_first: bool = False

    def look(
        self, *, limit: int, past: Iterable[int] = (), among: Sequence[int] | None = None
    ) -> list[Orphan]:
        """Return up to `limit` orphans as they are now, by ascending id, unlocked; none of
        those in `past`."""
        narrowed = "t.id <> ALL(%(past)s::bigint[]) ORDER BY {order} LIMIT %(limit)s"
        if among is not None:
            narrowed = "t.id = ANY(%(among)s::bigint[])"
        searches = " UNION ALL ".join(
            f"(SELECT {columns} FROM {self._table} t WHERE {condition} "  # noqa: S608
            f"AND {narrowed.format(order=order)})"
            for columns, condition, order in self._searches
        )
        with connection.cursor() as cursor:
            cursor.execute(
                _FIND.format(searches=searches),
                {
                    "limit": limit,
                    "past": array(past),
                    "among": array(among or ()),
                    "kind": self.kind,
                },
            )
            rows = sorted(cursor.fetchall())
        owners = {text: UUID(text) for text in {row[4] for row in rows} if text is not None}
        return [
            Orphan(pk, parent_pk, _CAUSES[cause], generation, owners.get(owner), waiting)
            for pk, parent_pk, cause, generation, owner, waiting in rows
        ]

    def lock(self, batch: Sequence[Orphan]) -> set[int]:
        """Lock parents, then rows, by ascending id; return the rows nobody else had locked."""
        parents, condition = "", ""
        if self._parent is not None:
            column, table = self._parent
            parents = (
                f"WITH parents AS MATERIALIZED (SELECT id FROM {table} "  # noqa: S608
                "WHERE id = ANY(%(parents)s::bigint[]) ORDER BY id "
                "FOR NO KEY UPDATE SKIP LOCKED) "
            )
            # An array is whole before a row is compared with it: parents are locked first.
            condition = f"AND {column} = ANY(ARRAY(SELECT id FROM parents)) "  # noqa: S608
        with connection.cursor() as cursor:
            cursor.execute(
                f"{parents}SELECT t.id FROM {self._table} t "  # noqa: S608
                f"WHERE t.id = ANY(%(pks)s::bigint[]) {condition}"
                "ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED",
                {
                    "pks": array(o.pk for o in batch),
                    "parents": array({o.parent_pk for o in batch if o.parent_pk is not None}),
                },
            )
            return {pk for (pk,) in cursor.fetchall()}

    def dispatch_later(self, pks: Sequence[int]) -> None:
        """Move the next hint of each locked row further away: by 15, 45, then every 135 s."""
        _, *later = bounds.DISPATCH_BACKOFF_SECONDS
        steps = "%(later)s::float8[]"
        with connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {self._table} SET dispatch_count = dispatch_count + 1, "  # noqa: S608
                "next_dispatch_at = clock_timestamp() + make_interval(secs => "
                f"({steps})[least(dispatch_count + 1, cardinality({steps}))]), "
                f"write_mark = {NEXT_MARK_SQL} WHERE id = ANY(%(pks)s::bigint[])",
                {"later": [float(seconds) for seconds in later], "pks": list(pks)},
            )

    @property
    def _table(self) -> str:
        return connection.ops.quote_name(self.model._meta.db_table)

    @cached_property
    def _parent(self) -> tuple[str, str] | None:
        """The column of `t` that refers to the parent, and the parent's table."""
        if self.parent is None:
            return None
        field = cast("models.ForeignKey[Any, Any]", self.model._meta.get_field(self.parent))
        quote = connection.ops.quote_name
        return f"t.{quote(field.column)}", quote(field.related_model._meta.db_table)

    @cached_property
    def _searches(self) -> list[tuple[str, str, str]]:
        """Columns, condition and order of each kind of orphan; each has its partial index."""
        owned, queued = _words(self.owned_states), _words(self.queued_states)
        parent = self._parent[0] if self._parent else "NULL::bigint"
        live = "t.finished_at IS NULL"
        owned_order = "t.created_at, t.id" if self.oldest_first else "t.owner, t.id"

        def columns(cause: str, waiting: str = "false") -> str:
            return f"t.id, {parent}, {cause}, t.generation, t.owner, {waiting}"

        return [
            (
                columns("NULL::text"),
                f"{live} AND t.state IN ({owned}) AND NOT EXISTS ({_LIVING})",
                owned_order,
            ),
            (
                columns(f"'{Cause.DEADLINE_PASSED.value}'"),
                f"{live} AND t.state IN ({owned}) AND EXISTS ({_LIVING}) AND t.deadline_at < "
                f"clock_timestamp() - interval '{bounds.DEADLINE_GRACE_SECONDS} s'",
                owned_order,
            ),
            (
                columns(_UNCLAIMED, "t.queue_deadline_at >= clock_timestamp()"),
                f"{live} AND t.state IN ({queued}) "
                "AND (t.queue_deadline_at < clock_timestamp() "
                f"OR t.next_dispatch_at <= clock_timestamp() AND {MAY_CLAIM_SQL})",
                "t.created_at, t.id",
            ),
        ]


def _words(states: Iterable[str]) -> str:
    return ", ".join(f"'{state}'" for state in states)
