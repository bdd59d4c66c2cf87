"""A transition in one statement: one round trip, planned once in a session.

For what is committed thousands of times a second. The statement is its own transaction, unless
one is open; it either writes all of its move or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model

# one for each thread, as Django's sessions are
_kept: Final = threading.local()

M = TypeVar("M", bound=Model)


def run(
    statement: str, parameters: Mapping[str, Any], *, prepared: bool = True
) -> list[tuple[Any, ...]]:
    """Return the rows of `statement`, with its parameters bound by the server.

    It is prepared where the session is ours alone; a pooler gives each transaction to any. One
    that writes a batch is better planned each time, for the sizes that it and its tables have.
    Errors are Django's, as from its own cursors.
    """
    database = connections[DEFAULT_DB_ALIAS]
    database.ensure_connection()
    database.validate_no_broken_transaction()
    session = database.connection
    if session.prepare_threshold is None and not settings.DATABASE_POOLED:
        session.prepare_threshold = 0
    # A cursor learns how values travel as it goes; a new one for each statement cost a third.
    cursor: psycopg.Cursor[tuple[Any, ...]] | None = getattr(_kept, "cursor", None)
    if cursor is None or cursor.connection is not session:
        cursor = _kept.cursor = psycopg.Cursor(session)
    with database.wrap_database_errors:
        return cursor.execute(
            statement, parameters, prepare=None if prepared else False
        ).fetchall()


def known_row(model: type[M], **columns: Any) -> M:
    """Return a row of which only these columns are known; others are read when asked for."""
    names = [f.attname for f in model._meta.concrete_fields if f.attname in columns]
    return model.from_db(DEFAULT_DB_ALIAS, names, [columns[name] for name in names])
