"""What an update may leave is what a new row might be, though each is judged by rules of its
own; and no row becomes another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from recovery.judges import Rules
from tests import factories as make
from tests.support.rules import refusal_of
from work.models import jobs, steps

pytestmark = pytest.mark.django_db

Values = dict[str, tuple[str, ...]]
TRIES: Final = 600
ONE: Final = "'00000000-0000-4000-8000-000000000001'"

JOB: Final[Values] = {
    "state": ("'queued'", "'running'", "'completed'", "'failed'", "'cancelled'", "'odd'"),
    "finished_at": ("NULL", "now()"),
    "error_code": ("''", "'x'"),
    "owner": ("NULL", ONE),
    "claim_token": ("NULL", ONE),
    "generation": ("generation", "generation + 1", "generation - 1"),
    "attempts": ("attempts", "attempts + 1", "attempts - 1"),
    "planned_releases": ("planned_releases", "planned_releases + 1", "-1"),
    "dispatch_count": ("dispatch_count + 1", "-1"),
    "claimed_at": ("NULL", "now()"),
    "deadline_at": ("NULL", "deadline_at", "coalesce(deadline_at, now())"),
}
# what changes when a job is claimed, released or ended
JOB_MOVES: Final[list[dict[str, str]]] = [
    {},
    {
        "state": "'running'", "owner": ONE, "claim_token": ONE,
        "generation": "generation + 1", "attempts": "attempts + 1", "claimed_at": "now()",
        "deadline_at": "coalesce(deadline_at, now())",
    },
    {
        "state": "'queued'", "owner": "NULL", "claim_token": "NULL",
        "generation": "generation + 1",
    },
    {"state": "'completed'", "finished_at": "now()"},
    {"state": "'failed'", "finished_at": "now()", "error_code": "'x'"},
]  # fmt: skip
STEP: Final[Values] = {
    "state": ("'requested'", "'running'", "'succeeded'", "'refused'", "'started'", "'odd'"),
    "finished_at": ("NULL", "now()"),
    "started_at": ("NULL", "now()"),
    "error_code": ("''", "'x'"),
    "result": ("'x'", "repeat('x', 65537)"),
    "result_bytes": ("1", "-1"),
}
STEP_MOVES: Final[list[dict[str, str]]] = [
    {},
    {"state": "'running'", "started_at": "now()"},
    {"state": "'succeeded'", "finished_at": "now()"},
    {"state": "'refused'", "finished_at": "now()", "error_code": "'x'"},
]
REQUEST: Final[Values] = {
    "state": ("'started'", "'completed'", "'failed'", "'odd'"),
    "finished_at": ("NULL", "now()"),
    "error_code": ("''", "'x'"),
    "anomaly_count": ("1", "-1"),
    "text": ("'x'", "repeat('x', 65537)"),
}
REQUEST_MOVES: Final[list[dict[str, str]]] = [
    {},
    {"state": "'completed'", "finished_at": "now()"},
    {"state": "'failed'", "finished_at": "now()", "error_code": "'x'"},
]


@pytest.mark.parametrize(
    ("create", "fresh", "moves", "values"),
    [
        (make.WorkJobFactory.create, jobs._FRESH, JOB_MOVES, JOB),
        (lambda: make.WorkJobFactory.create(running=True), jobs._FRESH, JOB_MOVES, JOB),
        (lambda: make.WorkJobFactory.create(released=True), jobs._FRESH, JOB_MOVES, JOB),
        (make.WorkStepFactory.create, steps._STEP_FRESH, STEP_MOVES, STEP),
        (
            lambda: make.WorkStepFactory.create(running=True),
            steps._STEP_FRESH, STEP_MOVES, STEP,
        ),
        (
            make.WorkProviderStepFactory.create,
            steps._PROVIDER_STEP_FRESH, REQUEST_MOVES, REQUEST,
        ),
    ],
    ids=["queued", "running", "released", "requested call", "running call", "request"],
)  # fmt: skip
def test_an_update_leaves_nothing_that_a_new_row_may_not_be(
    create: Callable[[], Model], fresh: Rules, moves: list[dict[str, str]], values: Values
) -> None:
    row, seen = create(), Counter[str]()
    dice = random.Random(7)
    for _ in range(TRIES):
        changes = {**dice.choice(moves)}
        for column in dice.sample(sorted(values), dice.choice([0, 1, 1, 2])):
            changes[column] = dice.choice(values[column])
        if "write_mark" in {field.name for field in row._meta.concrete_fields}:
            generation = changes.get("generation", "generation")
            changes["write_mark"] = f"(({generation})::bigint << 32) | 7"
        seen[_broken_after(row, changes, fresh)] += 1

    assert set(seen) == {"refused", "whole"}, seen
    assert min(seen.values()) > TRIES / 100


def _broken_after(row: Model, changes: dict[str, str], fresh: Rules) -> str:
    """Return whether the update is refused, or which rule of a new row it leaves broken."""
    table = row._meta.db_table
    assignments = ", ".join(f"{column} = {value}" for column, value in changes.items())
    rules = " ".join(
        f"WHEN {sql} THEN '{rule}'" for rule, sql in fresh.items() if isinstance(sql, str)
    )
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            if assignments:
                cursor.execute(f"UPDATE {table} SET {assignments} WHERE id = {row.pk}")
            cursor.execute(
                f"SELECT CASE {rules} ELSE 'whole' END FROM {table} new WHERE id = {row.pk}"
            )
            [(broken,)] = cursor.fetchall()
            transaction.set_rollback(True)
    except IntegrityError:
        return "refused"
    return str(broken)


@pytest.mark.parametrize(
    ("create", "rule"),
    [
        (make.WorkJobFactory.create, "admission_is_immutable"),
        (make.WorkStepFactory.create, "identity_is_fixed"),
        (make.WorkProviderStepFactory.create, "identity_is_fixed"),
        (make.ComputerFactory.create, "identity_is_fixed"),
    ],
    ids=["job", "call", "request", "computer"],
)
def test_no_row_takes_the_id_of_another(create: Callable[[], Model], rule: str) -> None:
    row = create()
    table = row._meta.db_table
    mark = ""
    if "write_mark" in {field.name for field in row._meta.concrete_fields}:
        mark = ", write_mark = write_mark + 1"

    assert refusal_of(f"UPDATE {table} SET id = -id{mark} WHERE id = {row.pk}") == (
        f"{table}_{rule}"
    )
