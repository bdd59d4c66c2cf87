"""A transition in one statement: one round trip, planned once in a session.

For what is committed thousands of times a second. The statement is its own transaction, unless
one is open; it either writes all of its move or nothing.

Where rows are locked by writing to the first of them, the statement may find only later that
another was faster. `MOVED_SQL` then takes back what it wrote, and `run` returns no row.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any, Final, TypeVar

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, ProgrammingError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from django.db.models.base import ModelState
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.types.datetime import TimestamptzLoader

# one for each thread, as Django's sessions are
_kept: Final = threading.local()

M = TypeVar("M", bound=Model)
Rows = list[tuple[Any, ...]]

# In the WHERE of a statement's last SELECT: true, or nothing is written (migration 0006). The
# function is called only to take it all back.
MOVED_SQL: Final = "({moved} OR recovery_moved(false))"
NOTHING_MOVED: Final = "HF001"
# The session forgot the statement, or a column of its result has another type since.
_TO_PREPARE_ANEW: Final = frozenset({"26000", "0A000"})
# A function that looks at a column keeps its plans as long as the session lives, and fails for
# ever once the column has another type.
_TO_BEGIN_ANEW: Final = "42804"
# A plan outlives the size for which it was made: one that read a whole table while that was
# nearly empty would do so until the next ANALYZE, by an index too where it was to be hashed or
# merged. So would those of the foreign keys. Before PostgreSQL 18 what cannot be avoided then
# seems so dear that it is compiled.
_NO_SCANS: Final = b"""
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET jit = off
"""
# Of one session: a plan takes up to 200 kB of the server. What was not used for longest goes.
PREPARED_MAX_ITEMS: Final = 64
_PLACE: Final = re.compile(r"%(?:\((\w+)\)s|%)")


def run(statement: str, parameters: Mapping[str, Any], *, prepared: bool = True) -> Rows:
    """Return the rows of `statement`, with its parameters bound by the server; none where it
    was taken back.

    It is prepared where the session is ours alone; a pooler gives each transaction to any. One
    that writes a batch is better planned each time, for the sizes that it and its tables have.
    Errors are Django's, as from its own cursors.
    """
    database = connections[DEFAULT_DB_ALIAS]
    try:
        return _run(database, statement, parameters, prepared=prepared)
    except ProgrammingError as error:
        is_outlived = getattr(error.__cause__, "sqlstate", None) == _TO_BEGIN_ANEW
        if not is_outlived or database.in_atomic_block or not database.get_autocommit():
            raise
    # nothing was done, and nothing is open that the session would take along
    database.close()
    return _run(database, statement, parameters, prepared=prepared)


def _run(
    database: BaseDatabaseWrapper,
    statement: str,
    parameters: Mapping[str, Any],
    *,
    prepared: bool,
) -> Rows:
    database.ensure_connection()
    database.validate_no_broken_transaction()
    session: _Session | None = getattr(_kept, "session", None)
    if session is None or session.driver is not database.connection:
        session = _kept.session = _Session(database.connection)
    with database.wrap_database_errors:
        try:
            if database.in_atomic_block:
                # what is taken back is this statement alone
                with transaction.atomic():
                    return session.execute(statement, parameters)
            if prepared and session.driver.autocommit and not settings.DATABASE_POOLED:
                return session.execute_prepared(statement, parameters)
            return session.execute(statement, parameters)
        except psycopg.DatabaseError as error:
            if error.sqlstate != NOTHING_MOVED:
                raise
            return []


class _Session:
    """A session of the database, and the statements that are prepared in it.

    The driver's cursor looks at each statement and its result in Python, which took longer than
    the server needs for a small one. What is prepared goes to libpq by the driver's own
    binding, and values travel as they do with a cursor.
    """

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self.driver = driver
        # It learns how values travel as it goes; a new one for each statement cost a third.
        self._cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(driver)
        # Django's own reads each time in Python; sessions are in UTC as it is
        self._cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        self._values = Transformer(self._cursor)
        # by text and types: a small number travels as another type than a large one
        self._names: OrderedDict[tuple[bytes, tuple[int, ...] | None], bytes] = OrderedDict()
        # Names belong to a session of the server. A pooler of which nobody told us gives one
        # to several of ours, of other processes too: none of them may take another's statement.
        self._prefix = secrets.token_hex(8)
        self._numbers = count()

    def execute(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Return the rows of a statement that is planned anew."""
        return self._cursor.execute(statement, parameters, prepare=False).fetchall()

    def execute_prepared(self, statement: str, parameters: Mapping[str, Any]) -> Rows:
        """Return the rows of a statement that is its own transaction, planned once.

        It is not cut short: a signal to this very thread is heeded when it has ended.
        """
        text, names = _numbered(statement)
        values = self._values.dump_sequence(
            [parameters[name] for name in names], [PyFormat.AUTO] * len(names)
        )
        result = self._sent(text, values)
        if result.status != ExecStatus.TUPLES_OK and _sqlstate(result) in _TO_PREPARE_ANEW:
            self._forget((text, self._values.types))  # nothing was done
            result = self._sent(text, values)
        if result.status != ExecStatus.TUPLES_OK:
            raise _error(result)
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _sent(self, text: bytes, values: Sequence[Buffer | None]) -> PGresult:
        """Return what came of the statement, or of its preparation where that failed."""
        key, formats = (text, self._values.types), self._values.formats
        libpq = self.driver.pgconn
        name = self._names.get(key)
        if name is None:
            libpq.exec_(_NO_SCANS)
            name = f"holdfast_{self._prefix}_{next(self._numbers)}".encode()
            result = libpq.prepare(name, text, self._values.types)
            if result.status != ExecStatus.COMMAND_OK:
                return result
            self._names[key] = name
            if len(self._names) > PREPARED_MAX_ITEMS:
                self._forget(next(iter(self._names)))
        else:
            self._names.move_to_end(key)
        return libpq.exec_prepared(name, values, formats)  # type: ignore[arg-type]  # nulls

    def _forget(self, key: tuple[bytes, tuple[int, ...] | None]) -> None:
        """Prepare it anew when it is needed; the server forgets it, if it has not."""
        name = self._names.pop(key, None)
        if name is not None:
            self.driver.pgconn.exec_(b"DEALLOCATE " + name)


@cache
def _numbered(statement: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the statement as the server reads it, and the name of each of its parameters."""
    names: dict[str, int] = {}

    def placed(found: re.Match[str]) -> str:
        if found[1] is None:
            return "%"
        return f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACE.sub(placed, statement).encode(), tuple(names)


def _sqlstate(result: PGresult) -> str | None:
    state = result.error_field(DiagnosticField.SQLSTATE)
    return None if state is None else state.decode()


def _error(result: PGresult) -> psycopg.Error:
    """Return the driver's error; one without a code comes from libpq, which lost the server."""
    if _sqlstate(result) is None:
        return psycopg.OperationalError(result.get_error_message())
    return error_from_result(result)


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
