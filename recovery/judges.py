"""The rules of tables whose rows are moved one by one and often, each looked at where it can be
broken.

A judge is a trigger's function that looks at a written row by many rules. The expression of a
function is prepared anew in each transaction that comes to it, which takes longer than to find
it false, twice for each comparison in it. So what is said of a move is a tree: it asks first
what kind of move it is, and then for that kind alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pgtrigger

from recovery.lifecycles import Lifecycle
from recovery.triggers import ConstantTrigger, in_states, refuse


@dataclass(frozen=True, slots=True)
class Lookup:
    """A rule that needs another table: a row breaks it where the query `wants` finds nothing.
    It is asked of rows for which `when` is true, if that is given."""

    wants: str
    when: str = ""


@dataclass(frozen=True, slots=True)
class Branch:
    """More rules for rows for which `when` is true, and `otherwise` for the others."""

    when: str
    then: Rules
    otherwise: Rules = field(default_factory=dict)


# The name of each rule, and the SQL that is true where a row breaks it. What a branch is called
# is said for the reader alone.
Rules = Mapping[str, str | Lookup | Branch]


class Judge(ConstantTrigger):
    """One trigger that looks at each row written, by many rules: see `judges`.

    The first rule that is broken is named, those above a branch before its own; what has to be
    looked up comes last.
    """

    def __init__(
        self, table: str, name: str, operation: pgtrigger.Operation, rules: Rules
    ) -> None:
        self.rules = tuple(dict.fromkeys(_names(rules)))
        super().__init__(
            name=name,
            when=pgtrigger.After,
            operation=operation,
            declare=[("broken", "text")],
            func=f"{_body(table, rules, {})} RETURN NULL;",
        )


def judges(
    table: str, *, fresh: Rules, moved: Rules, kept: Rules, of: Iterable[str]
) -> list[Judge]:
    """Return what judges the rows of a table, no rule oftener than it can be broken.

    `fresh` are for a new row, and hold for it ever after. An update is judged by `moved`; one
    that sets any of the columns `of` by `kept` as well, about what never changes or is written
    seldom. So `fresh` may name a column that neither of them guards only if it is one of those.
    """
    columns = list(of)
    guarded = {*columns, *_columns(moved), *_columns(kept)}
    unguarded = _columns(fresh) - guarded
    assert not unguarded, f"{table}: {unguarded} may change"  # noqa: S101  at import
    return [
        # triggers fire in the order of their names: this one speaks first, as a CHECK would
        Judge(table, "abides_by_rules", pgtrigger.Update, moved),
        Judge(table, "begins_by_rules", pgtrigger.Insert, fresh),
        Judge(
            table,
            "keeps_what_is_fixed",
            pgtrigger.UpdateOf(*columns),  # type: ignore[no-untyped-call]
            kept,
        ),
    ]


def fresh_rules(
    lifecycle: Lifecycle, *, silent: Iterable[str], spoken: Iterable[str]
) -> dict[str, str]:
    """Return for new rows what `lifecycle_constraints` say of every row."""
    ended = in_states("NEW", lifecycle.terminal)
    return {
        "state_known": f"NOT {in_states('NEW', lifecycle.moves)}",
        "ended_with_its_time": f"({ended}) <> (NEW.finished_at IS NOT NULL)",
        "error_code_is_honest": _dishonest(silent, spoken),
    }


def move_rules(
    lifecycle: Lifecycle, *, silent: Iterable[str], spoken: Iterable[str]
) -> dict[str, str | Branch]:
    """Return for updates what keeps `fresh_rules` true: legal moves and a frozen end."""
    return {
        "end_is_final": "OLD.finished_at IS NOT NULL",
        "open or ended": Branch(
            "NEW.finished_at IS NULL",
            then={
                "ended_with_its_time": in_states("NEW", lifecycle.terminal),
                "moves": lifecycle.violation_sql(into=lifecycle.open),
            },
            otherwise={
                "ended_with_its_time": in_states("NEW", lifecycle.open),
                **ending_rules(lifecycle, silent=silent, spoken=spoken),
            },
        ),
    }


def ending_rules(
    lifecycle: Lifecycle, *, silent: Iterable[str], spoken: Iterable[str]
) -> dict[str, str]:
    """Return the rules of an update that is to end an open row."""
    return {
        "moves": lifecycle.violation_sql(into=lifecycle.terminal),
        "error_code_is_honest": _dishonest(silent, spoken),
    }


def _dishonest(silent: Iterable[str], spoken: Iterable[str]) -> str:
    return (
        f"({in_states('NEW', silent)} AND NEW.error_code <> '') "
        f"OR ({in_states('NEW', spoken)} AND NEW.error_code = '')"
    )


def _body(table: str, rules: Rules, above: Mapping[str, str]) -> str:
    """Return the statements that refuse a row which breaks one of `rules`, or what was said
    `above` them: it is asked with the last of them, in one expression."""
    wrong = {**above, **{rule: sql for rule, sql in rules.items() if isinstance(sql, str)}}
    branches = [branch for branch in rules.values() if isinstance(branch, Branch)]
    lookups = {rule: sql for rule, sql in rules.items() if isinstance(sql, Lookup)}
    return " ".join(
        [
            *(_branch(table, branch, wrong) for branch in branches[:1]),
            *(_branch(table, branch, {}) for branch in branches[1:]),
            *([] if branches or not wrong else [_refusal(table, wrong)]),
            *(_lookup(table, rule, lookup) for rule, lookup in lookups.items()),
        ]
    )


def _branch(table: str, branch: Branch, above: Mapping[str, str]) -> str:
    return (
        f"IF {branch.when} THEN {_body(table, branch.then, above)} "
        f"ELSE {_body(table, branch.otherwise, above)} END IF;"
    )


def _refusal(table: str, wrong: Mapping[str, str]) -> str:
    """Return the statement that refuses; which rule was broken is asked only then."""
    cases = " ".join(f"WHEN {sql} THEN '{table}_{rule}'" for rule, sql in wrong.items())
    return f"""
        IF {" OR ".join(f"({sql})" for sql in wrong.values())} THEN
            broken := CASE {cases} END;
            RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = broken,
                MESSAGE = broken;
        END IF;"""


def _lookup(table: str, rule: str, lookup: Lookup) -> str:
    asked = f"IF NOT EXISTS ({lookup.wants}) THEN {refuse(f'{table}_{rule}')} END IF;"
    return f"IF {lookup.when} THEN {asked} END IF;" if lookup.when else asked


def _names(rules: Rules) -> Iterator[str]:
    for rule, sql in rules.items():
        if isinstance(sql, Branch):
            yield from _names(sql.then)
            yield from _names(sql.otherwise)
        else:
            yield rule


def _columns(rules: Rules) -> set[str]:
    """Return the columns that rules speak of."""
    return set(re.findall(r"NEW\.(\w+)", str(rules)))
