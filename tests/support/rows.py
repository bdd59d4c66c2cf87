"""Looking at rows as PostgreSQL has them, to see that nothing was written."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

Rows = dict[str, list[tuple[str, ...]]]


def rows_of(tables: Iterable[str]) -> Rows:
    """Return each row with the transaction that wrote it: equal means nothing was written."""
    rows: Rows = {}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(
                f"SELECT t.xmin::text, t.ctid::text, t::text FROM {table} t ORDER BY t"
            )
            rows[table] = cursor.fetchall()
    return rows
