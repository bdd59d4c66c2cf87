"""A transition in one statement: one round trip, planned once in a session.

For what is committed thousands of times a second. The statement is its own transaction, unless
one is open; it either writes all of its move or nothing.

Where rows are locked by writing to the first of them, the statement may find only later that
another was faster. `MOVED_SQL` then takes back what it wrote, and `run` returns no row.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final, TypeVar

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Model
from django.db.models.base import ModelState
from psycopg.types.datetime import TimestamptzLoader

# one for each thread, as Django's sessions are
_kept: Final = threading.local()

M = TypeVar("M", bound=Model)

# In the WHERE of a statement's last SELECT: true, or nothing is written (migration 0006). The
# function is called only to take it all back.
MOVED_SQL: Final = "({moved} OR recovery_moved(false))"
NOTHING_MOVED: Final = "HF001"


def run(
    statement: str, parameters: Mapping[str, Any], *, prepared: bool = True
) -> list[tuple[Any, ...]]:
    """Return the rows of `statement`, with its parameters bound by the server; none where it
    was taken back.

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
        # Django's own reads each time in Python; sessions are in UTC as it is
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
    # in a transaction of somebody else's, what is taken back is this statement alone
    within = transaction.atomic() if database.in_atomic_block else nullcontext()
    with database.wrap_database_errors:
        try:
            with within:
                return cursor.execute(
                    statement, parameters, prepare=None if prepared else False
                ).fetchall()
        except psycopg.DatabaseError as error:
            if error.sqlstate != NOTHING_MOVED:
                raise
            return []


def stored(model: type[M], known: Mapping[str, Any], *, earlier: Model | None = None) -> M:
    """Return a row of the database of which these columns are `known`, and of the others what
    an `earlier` reading of it knew; what nobody knows is read when asked for.

    The same as `Model.from_db`, whose constructor looks at every field: with a dozen rows to a
    transition it took longer than the driver.
    """
    row = model.__new__(model)
    if earlier is not None:
        row.__dict__.update(earlier.__dict__)
    row.__dict__.update(known)
    row._state = state = ModelState()
    state.adding, state.db = False, DEFAULT_DB_ALIAS
    return row
