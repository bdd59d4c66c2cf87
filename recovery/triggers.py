"""The database's half of the fence: triggers every owned row and every child of one carries.

All row triggers run AFTER the update: a BEFORE trigger locks and logs each old row first, even
when it has nothing to say. An IntegrityError names the rule that was broken like a CHECK
constraint does.

A rule is a trigger of its own with the violation in its WHEN clause; or, for a table whose rows
are moved one by one and often, one of the many of a judge (`recovery.judges`). A CHECK and a
WHEN are read and prepared anew by each statement, which for one row costs more than its update.
Where no column is set that a WHEN waits for it is copied all the same, by each statement that
writes to its table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pgtrigger
from django.db.models import Model
from pgtrigger import compiler

from recovery.fences import GENERATION_SHIFT_BITS
from recovery.lifecycles import Lifecycle

# The mark lacks the row's generation: a stale writer.
FENCE_NOT_PRESENTED: Final = f"NEW.generation <> NEW.write_mark >> {GENERATION_SHIFT_BITS}"

# The transaction looks at what was committed before it began, and not at what its statement
# waited for.
SNAPSHOT_IS_OLDER: Final = (
    "current_setting('transaction_isolation') IN ('repeatable read', 'serializable')"
)


def refuse(constraint: str) -> str:
    """Return a trigger body that fails as if the CHECK constraint `constraint` were
    violated."""
    return (
        "RAISE EXCEPTION USING ERRCODE = 'check_violation', "
        f"CONSTRAINT = '{constraint}', MESSAGE = '{constraint}';"
    )


def refuse_update(
    table: str, rule: str, violation: str, *, of: Iterable[str] = ()
) -> pgtrigger.Trigger:
    """Return the trigger `rule` that refuses an update for which the SQL `violation` is true.

    A violation that needs one of the columns `of` to change is not looked for in a statement
    that sets none of them: preparing the condition costs more than the update of a row.
    """
    columns = list(of)
    operation = pgtrigger.Update
    if columns:
        operation = pgtrigger.UpdateOf(*columns)  # type: ignore[no-untyped-call]
    return pgtrigger.Trigger(
        name=rule,
        when=pgtrigger.After,
        operation=operation,
        condition=pgtrigger.Condition(violation),
        func=refuse(f"{table}_{rule}"),
    )


def refuse_insert(table: str, rule: str, violation: str) -> pgtrigger.Trigger:
    """Return the trigger `rule` that refuses a new row for which the SQL `violation` is true.

    It serves as a CHECK constraint of columns that never change, and costs no update anything.
    """
    return pgtrigger.Trigger(
        name=rule,
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        condition=pgtrigger.Condition(violation),
        func=refuse(f"{table}_{rule}"),
    )


def goes_with_its_parent(table: str, *, parent: str, parent_key: str) -> pgtrigger.Trigger:
    """Return the trigger that refuses a commit which removes a row and leaves its parent.

    Without the record of what was done, whoever goes on with the parent would do it again. It
    looks at the end of the transaction: Django removes children first.
    """
    return pgtrigger.Trigger(
        name="goes_with_its_parent",
        when=pgtrigger.After,
        operation=pgtrigger.Delete,
        timing=pgtrigger.Deferred,
        func=f"""
            IF EXISTS (SELECT FROM {parent} WHERE id = OLD.{parent_key})
                THEN {refuse(f"{table}_goes_with_its_parent")} END IF;
            RETURN NULL;
        """,
    )


class ConstantTriggerSql(compiler.UpsertTriggerSql):
    """The statements of a `ConstantTrigger`. Migrations name this class: its text stays."""

    def get_template(self) -> str:
        """Return them, to be filled in."""
        return """
            CREATE OR REPLACE FUNCTION {pgid}()
            RETURNS TRIGGER AS $$
                {declare}
                BEGIN
                    {func}
                END;
            $$ LANGUAGE plpgsql;

            DROP TRIGGER IF EXISTS {pgid} ON {table};
            CREATE TRIGGER {pgid} {when} {operation} ON {table} {referencing}
                FOR EACH {level} EXECUTE PROCEDURE {execute};

            COMMENT ON TRIGGER {pgid} ON {table} IS '{hash}';
        """


class ConstantTrigger(pgtrigger.Trigger):
    """A trigger that cannot be ignored, for functions that are entered often.

    pgtrigger's own ask first whether they are to be ignored, which opens a subtransaction and
    fails in it: that costs more than the rules.
    """

    def compile(self, model: Model) -> compiler.Trigger:
        """Return what migrations store."""
        compiled = super().compile(model)
        return compiler.Trigger(
            name=compiled.name, sql=ConstantTriggerSql(**compiled.sql.kwargs)
        )


def refuse_change(table: str, rule: str, columns: Iterable[str]) -> pgtrigger.Trigger:
    """Return the trigger `rule` that refuses an update which changes any of `columns`, or the
    id: by three updates two rows would be each other."""
    fixed = list(dict.fromkeys(["id", *columns]))
    return refuse_update(table, rule, changed(fixed), of=fixed)


def changed(columns: Iterable[str]) -> str:
    """Return SQL that is true when an update changes any of `columns`."""
    return " OR ".join(f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in columns)


def in_states(row: str, states: Iterable[str]) -> str:
    """Return SQL that is true when `row` (OLD or NEW) is in one of `states`."""
    return f"{row}.state IN ({', '.join(repr(str(state)) for state in sorted(states))})"


def _owned_row_rules(lifecycle: Lifecycle, *, adopted: bool = False) -> dict[str, str]:
    """Return an owned row's rules about a change: fence, generation, legal moves, frozen end.

    A kind that is `adopted` loses its owner while it is open; that release takes a new
    generation too, or the old owner could go on until the next claim.
    """
    rules = {
        "fence": "NEW.write_mark = OLD.write_mark",
        "generation": (
            "NEW.generation < OLD.generation OR NEW.generation > OLD.generation + 1 OR "
            "(NEW.owner IS DISTINCT FROM OLD.owner AND NEW.owner IS NOT NULL "
            "AND NEW.generation <> OLD.generation + 1)"
        ),
        "moves": lifecycle.violation_sql(),
        "end_is_final": in_states("OLD", lifecycle.terminal),
    }
    if adopted:
        rules["release_is_fenced"] = (
            "OLD.owner IS NOT NULL AND NEW.owner IS NULL "
            f"AND NOT {in_states('NEW', lifecycle.terminal)} "
            "AND NEW.generation <> OLD.generation + 1"
        )
    return rules


# A rule that needs one of these to change is not looked for where none of them is set.
_ABOUT: Final = {
    "generation": ("generation", "owner"),
    "moves": ("state",),
    "release_is_fenced": ("owner",),
}


def owned_row_triggers(
    table: str, lifecycle: Lifecycle, *, fixed: Iterable[str], adopted: bool = False
) -> list[pgtrigger.Trigger]:
    """Return a trigger for each of an owned row's rules, and for its fixed admission.

    `fixed` are the columns that never change after admission.
    """
    return [
        *(
            refuse_update(table, rule, violation, of=_ABOUT.get(rule, ()))
            for rule, violation in _owned_row_rules(lifecycle, adopted=adopted).items()
        ),
        refuse_change(table, "admission_is_immutable", fixed),
    ]


def child_row_triggers(
    table: str,
    lifecycle: Lifecycle,
    *,
    fixed: Iterable[str],
    parent: str,
    parent_key: str,
    parent_states: Iterable[str],
) -> list[pgtrigger.Trigger]:
    """Return what keeps a child of an owned row honest.

    An update is judged by the row alone (locking the parent there deadlocks with the sweep):
    legal moves, frozen end, and `fixed` columns. An insert is judged against its locked parent:
    see `child_fence`. It is removed with its parent alone.

    A child that stays open when its parent is adopted moves to the new generation, which is not
    `fixed` then. It carries a `write_mark` of its own with `fence_presented`, and two rules
    more: the mark moves, and the generation never falls, as a stale save of the whole row
    brings a mark that fits.
    """
    return [
        refuse_update(table, "moves", lifecycle.violation_sql(), of=["state"]),
        refuse_update(table, "end_is_final", in_states("OLD", lifecycle.terminal)),
        refuse_change(table, "identity_is_fixed", fixed),
        child_fence(table, parent=parent, parent_key=parent_key, parent_states=parent_states),
        goes_with_its_parent(table, parent=parent, parent_key=parent_key),
    ]


def child_fence(
    table: str,
    *,
    parent: str,
    parent_key: str,
    parent_states: Iterable[str],
    kind: type[pgtrigger.Trigger] = pgtrigger.Trigger,
) -> pgtrigger.Trigger:
    """Return the statement trigger that lets children in only under an open parent of their
    generation.

    It locks the parents FOR SHARE in id order, and looks for a child of none of them. A check
    without the lock lets a child slip under a parent that recovery is closing. A parent of no
    generation presented is not waited for.
    """
    states = ", ".join(repr(str(state)) for state in sorted(parent_states))
    return kind(
        name="child_fence",
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
        # one query: each of a function takes longer to begin than to read a few rows
        func=f"""
            IF EXISTS (
                SELECT FROM fresh WHERE (({parent_key}, generation) IN (
                    SELECT p.id, p.generation FROM {parent} AS p
                    WHERE p.id = ANY (ARRAY(SELECT {parent_key} FROM fresh))
                        AND p.generation = ANY (ARRAY(SELECT generation FROM fresh))
                        AND p.state IN ({states})
                    ORDER BY p.id FOR SHARE
                )) IS NOT TRUE
            ) THEN {refuse(f"{table}_child_fence")} END IF;
            RETURN NULL;
        """,  # noqa: S608  names from our own models, at migration time
    )
