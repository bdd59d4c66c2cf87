"""The database's half of the fence: triggers every owned row and every child of one carries.

All row triggers run AFTER the update: a BEFORE trigger locks and logs each old row first, even
when it has nothing to say. An IntegrityError names the rule that was broken like a CHECK
constraint does.

A rule is a trigger of its own with the violation in its WHEN clause; or, for a table whose rows
are moved one by one and often, one of the many that a `Judge` looks at. A CHECK and a WHEN are
read and prepared anew by each statement, which for one row costs more than its update; what a
function looks at is prepared once in a session. Where no column is set that a WHEN waits for it
is copied all the same, by each statement that writes to its table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pgtrigger
from django.db.models import Model
from pgtrigger import compiler

from recovery.fences import GENERATION_SHIFT_BITS
from recovery.lifecycles import Lifecycle

# The mark lacks the row's generation: a stale writer.
FENCE_NOT_PRESENTED: Final = f"NEW.generation <> NEW.write_mark >> {GENERATION_SHIFT_BITS}"


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


@dataclass(frozen=True, slots=True)
class Lookup:
    """A rule that needs another table: a row for which `when` is true breaks it where the query
    `wants` finds nothing."""

    when: str
    wants: str


# The name of each rule, and the SQL that is true where a row breaks it.
Rules = Mapping[str, str | Lookup]


class Judge(ConstantTrigger):
    """One trigger that looks at each row written, by many rules: see `judges`.

    The first rule that is broken is named; what has to be looked up comes last.
    """

    def __init__(
        self, table: str, name: str, operation: pgtrigger.Operation, rules: Rules
    ) -> None:
        self.rules = tuple(rules)
        wrong = {rule: sql for rule, sql in rules.items() if isinstance(sql, str)}
        cases = " ".join(f"WHEN {sql} THEN '{table}_{rule}'" for rule, sql in wrong.items())
        lookups = "".join(
            f"""
                IF {lookup.when} THEN
                    IF NOT EXISTS ({lookup.wants}) THEN {refuse(f"{table}_{rule}")} END IF;
                END IF;"""
            for rule, lookup in rules.items()
            if isinstance(lookup, Lookup)
        )
        super().__init__(
            name=name,
            when=pgtrigger.After,
            operation=operation,
            declare=[("broken", "text")],
            # An expression is prepared anew in each transaction that comes to it: the one that
            # finds the name only where a rule is broken.
            func=f"""
                IF {" OR ".join(f"({sql})" for sql in wrong.values())} THEN
                    broken := CASE {cases} END;
                    RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,
                        MESSAGE = broken;
                END IF;{lookups}
                RETURN NULL;
            """,
        )


def judges(
    table: str, rules: Rules, *, born: Rules, kept: Rules, of: Iterable[str]
) -> list[Judge]:
    """Return what judges the rows of a table, no rule oftener than it can be broken.

    `rules` hold for whatever is written; those that compare with OLD are for an update alone.
    `born` are for a new row, about columns that never change afterwards. `kept` are for an
    update that sets one of the columns `of`, and say which of these never change: each is about
    a change of one of them, or about their values alone.
    """
    columns = list(of)
    rows = {rule: sql for rule, sql in rules.items() if "OLD." not in str(sql)}
    for rule, sql in born.items():
        unwatched = set(re.findall(r"NEW\.(\w+)", str(sql))) - set(columns)
        assert not unwatched, f"{table}_{rule}: {unwatched} may change"  # noqa: S101  at import
    return [
        # triggers fire in the order of their names: this one speaks first, as a CHECK would
        Judge(table, "abides_by_rules", pgtrigger.Update, rules),
        Judge(table, "begins_by_rules", pgtrigger.Insert, {**rows, **born}),
        Judge(
            table,
            "keeps_what_is_fixed",
            pgtrigger.UpdateOf(*columns),  # type: ignore[no-untyped-call]
            kept,
        ),
    ]


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


def lifecycle_rules(
    lifecycle: Lifecycle, *, silent: Iterable[str], spoken: Iterable[str]
) -> dict[str, str]:
    """Return for `judges` what `lifecycle_constraints` say."""
    ended = in_states("NEW", lifecycle.terminal)
    return {
        "state_known": f"NOT {in_states('NEW', lifecycle.moves)}",
        "ended_with_its_time": f"({ended}) <> (NEW.finished_at IS NOT NULL)",
        "error_code_is_honest": (
            f"({in_states('NEW', silent)} AND NEW.error_code <> '') "
            f"OR ({in_states('NEW', spoken)} AND NEW.error_code = '')"
        ),
    }


def owned_row_rules(lifecycle: Lifecycle, *, adopted: bool = False) -> dict[str, str]:
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
            for rule, violation in owned_row_rules(lifecycle, adopted=adopted).items()
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
