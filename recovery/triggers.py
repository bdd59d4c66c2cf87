"""The database's half of the fence: triggers every owned row and every child of one carries.

All row triggers run AFTER the update with the violation in their WHEN clause: a BEFORE trigger
locks and logs each old row first, even when it has nothing to say. One named trigger a rule, so
that an IntegrityError names the rule like a CHECK constraint does.
"""

from __future__ import annotations

from collections.abc import Iterable

import pgtrigger

from recovery.lifecycles import Lifecycle


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


def refuse_change(table: str, rule: str, columns: Iterable[str]) -> pgtrigger.Trigger:
    """Return the trigger `rule` that refuses an update which changes any of `columns`."""
    columns = list(columns)
    return refuse_update(table, rule, changed(columns), of=columns)


def changed(columns: Iterable[str]) -> str:
    """Return SQL that is true when an update changes any of `columns`."""
    return " OR ".join(f"OLD.{name} IS DISTINCT FROM NEW.{name}" for name in columns)


def in_states(row: str, states: Iterable[str]) -> str:
    """Return SQL that is true when `row` (OLD or NEW) is in one of `states`."""
    return f"{row}.state IN ({', '.join(repr(str(state)) for state in sorted(states))})"


def owned_row_triggers(
    table: str, lifecycle: Lifecycle, *, fixed: Iterable[str], adopted: bool = False
) -> list[pgtrigger.Trigger]:
    """Return an owned row's rules: fence, generation, legal moves, frozen end, fixed admission.

    `fixed` are the columns that never change after admission. A kind that is `adopted` loses
    its owner while it is open; that release takes a new generation too, or the old owner could
    go on until the next claim.
    """
    rules = [
        refuse_update(table, "fence", "NEW.write_mark = OLD.write_mark"),
        refuse_update(
            table,
            "generation",
            "NEW.generation < OLD.generation OR NEW.generation > OLD.generation + 1 OR "
            "(NEW.owner IS DISTINCT FROM OLD.owner AND NEW.owner IS NOT NULL "
            "AND NEW.generation <> OLD.generation + 1)",
            of=["generation", "owner"],
        ),
        refuse_update(table, "moves", lifecycle.violation_sql(), of=["state"]),
        refuse_update(table, "end_is_final", in_states("OLD", lifecycle.terminal)),
        refuse_change(table, "admission_is_immutable", fixed),
    ]
    if adopted:
        released = f"NEW.owner IS NULL AND NOT {in_states('NEW', lifecycle.terminal)}"
        rules.append(
            refuse_update(
                table,
                "release_is_fenced",
                f"OLD.owner IS NOT NULL AND {released} "
                "AND NEW.generation <> OLD.generation + 1",
                of=["owner"],
            )
        )
    return rules


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
    see `child_fence`.

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
    ]


def child_fence(
    table: str, *, parent: str, parent_key: str, parent_states: Iterable[str]
) -> pgtrigger.Trigger:
    """Return the statement trigger that lets children in only under an open parent of their
    generation.

    It locks the parents FOR SHARE in id order and counts the matches. A check without the lock
    lets a child slip under a parent that recovery is closing.
    """
    states = ", ".join(repr(str(state)) for state in sorted(parent_states))
    return pgtrigger.Trigger(
        name="child_fence",
        level=pgtrigger.Statement,
        when=pgtrigger.After,
        operation=pgtrigger.Insert,
        referencing=pgtrigger.Referencing(new="fresh"),  # type: ignore[no-untyped-call]
        declare=[("presented", "bigint"), ("held", "bigint")],
        func=f"""
            SELECT count(*) INTO presented
                FROM (SELECT DISTINCT {parent_key}, generation FROM fresh) AS asked;
            SELECT count(*) INTO held FROM (
                SELECT p.id FROM {parent} AS p
                JOIN (SELECT DISTINCT {parent_key}, generation FROM fresh) AS asked
                    ON asked.{parent_key} = p.id AND asked.generation = p.generation
                WHERE p.state IN ({states}) ORDER BY p.id FOR SHARE OF p
            ) AS parents;
            IF presented <> held THEN {refuse(f"{table}_child_fence")} END IF;
            RETURN NULL;
        """,  # noqa: S608  names from our own models, at migration time
    )
