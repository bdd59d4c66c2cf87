"""The rules that tables state: which there are, and one of them broken by raw SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pgtrigger
import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from recovery.constraints import violated_constraint
from recovery.judges import Judge


def declared_rules(app: str) -> set[str]:
    """Return the name of each constraint and trigger on the tables of an app's models."""
    declared: set[str] = set()
    for model in apps.get_app_config(app).get_models():
        declared |= {constraint.name for constraint in model._meta.constraints}
    for owner, trigger in pgtrigger.registered():
        # a proxy states a rule of another app's table
        if owner._meta.app_label == app and not owner._meta.proxy:
            declared |= {f"{owner._meta.db_table}_{rule}" for rule in _rules_of(trigger)}
    return declared


@contextmanager
def at_once() -> Iterator[None]:
    """Judge foreign keys in the block, not at the commit that a test does not reach."""
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")


def refusal_of(statement: str) -> str:
    """Return the rule by which the database refuses a statement; fail when it does not."""
    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        connection.cursor().execute(statement)
    return violated_constraint(refused.value)


def another(model: type[Model], **changes: str) -> str:
    """Return the statement that inserts a second row like {pk}, with these columns changed."""
    table = model._meta.db_table
    pairs = "".join(f", '{name}', {value}" for name, value in changes.items())
    return (
        f"INSERT INTO {table} SELECT (jsonb_populate_record(t, jsonb_build_object("
        f"'id', 999999{pairs}))).* FROM {table} t WHERE id = {{pk}}"
    )


def silence_other_triggers(table: str, rule: str) -> None:
    """Let the rule speak alone: where two forbid the same, each does without the other."""
    connection.check_constraints()  # pending foreign keys would hold up the ALTER
    # one trigger speaks for all the rules it judges by
    speakers = [
        trigger.get_pgid(owner)
        for owner, trigger in pgtrigger.registered()
        if owner._meta.db_table == table and rule in _rules_of(trigger)
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgname FROM pg_trigger WHERE tgrelid = %s::regclass "
            "AND tgname LIKE 'pgtrigger\\_%%' AND tgname <> ALL(%s)",
            [table, speakers],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f'ALTER TABLE {table} DISABLE TRIGGER "{name}"')


def _rules_of(trigger: pgtrigger.Trigger) -> list[str]:
    return [*trigger.rules] if isinstance(trigger, Judge) else [str(trigger.name)]
