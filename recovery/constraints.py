"""The CHECK constraints that say a lifecycle and a bound to the database."""

from __future__ import annotations

from collections.abc import Iterable

import psycopg
from django.db import IntegrityError, models
from django.db.models import BaseConstraint, CheckConstraint, F, Func, Q
from django.db.models.functions import Cast
from django.db.models.lookups import LessThanOrEqual

from recovery.errors import ERROR_CODE_MAX_CHARS, ErrorCode
from recovery.fences import GENERATION_SHIFT_BITS
from recovery.lifecycles import Lifecycle


class OctetLength(Func):
    """Bytes of a text as PostgreSQL stores it."""

    function = "octet_length"
    output_field = models.IntegerField()


def at_most(column: str, limit_bytes: int) -> Q:
    """Return the condition `column` is null or holds at most `limit_bytes` of UTF-8."""
    return Q(LessThanOrEqual(OctetLength(F(column)), limit_bytes))


def json_at_most(column: str, limit_bytes: int) -> Q:
    """Return the condition the JSON `column` is null or at most `limit_bytes` as text."""
    as_text = Cast(F(column), models.TextField())
    return Q(LessThanOrEqual(OctetLength(as_text), limit_bytes))


def error_code_choices() -> list[tuple[str, str]]:
    """Return the codes a row may carry. Migrations name this function, so a new code is no
    migration."""
    return ErrorCode.choices


def error_code_field() -> models.CharField[str, str]:
    """Return the column every row that can end has: empty, or one of our codes."""
    return models.CharField(
        max_length=ERROR_CODE_MAX_CHARS, choices=error_code_choices, blank=True, default=""
    )


def violated_constraint(error: IntegrityError) -> str:
    """Return the name of the constraint, index or trigger rule that refused a statement."""
    cause = error.__cause__
    name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
    return name or ""


def lifecycle_constraints(
    table: str,
    lifecycle: Lifecycle,
    *,
    silent: Iterable[str] = (),
    spoken: Iterable[str] = (),
) -> list[BaseConstraint]:
    """Return: state known; terminal if and only if `finished_at` is set; codes honest.

    `silent` states carry no error code, `spoken` states carry one, the others may. A row
    without an error code of its own names neither.
    """
    ended = Q(state__in=sorted(lifecycle.terminal))
    has_time = Q(finished_at__isnull=False)
    coded = ~Q(error_code="")
    constraints: list[BaseConstraint] = [
        CheckConstraint(
            condition=Q(state__in=sorted(lifecycle.moves)), name=f"{table}_state_known"
        ),
        CheckConstraint(
            condition=(ended & has_time) | (~ended & ~has_time),
            name=f"{table}_ended_with_its_time",
        ),
    ]
    if silent or spoken:
        honest = ~(Q(state__in=sorted(silent)) & coded) & ~(
            Q(state__in=sorted(spoken)) & ~coded
        )
        constraints.append(
            CheckConstraint(condition=honest, name=f"{table}_error_code_is_honest")
        )
    return constraints


def fence_presented(table: str) -> CheckConstraint:
    """Return the constraint that stops a stale writer, whose mark lacks the row's
    generation."""
    return CheckConstraint(
        condition=Q(generation=F("write_mark").bitrightshift(GENERATION_SHIFT_BITS)),
        name=f"{table}_fence_presented",
    )
