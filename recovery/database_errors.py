"""What an exception says about the database: which error, whose fault, worth another try."""

from __future__ import annotations

from typing import Final

import psycopg
from django.db import DatabaseError, InterfaceError

_COLLISIONS: Final = frozenset({"40P01", "40001"})  # deadlock, serialisation
# Lost, out of resources, shut down, starting up; read-only (a standby), or tired of a
# transaction that stood still.
_AWAY: Final = ("08", "53", "57P", "25006", "25P03", "25P04")


def database_cause(error: BaseException) -> psycopg.Error | None:
    """Return the driver's error behind `error`, if the database had to do with it."""
    current: BaseException | None = error
    while current is not None and not isinstance(current, psycopg.Error):
        current = current.__cause__ if isinstance(current, DatabaseError) else None
    return current


def is_collision(error: BaseException) -> bool:
    """True when two transactions met in a way that one of them may simply repeat."""
    cause = database_cause(error)
    return cause is not None and cause.sqlstate in _COLLISIONS


def is_away(error: BaseException) -> bool:
    """True when the database could not be reached, so that no row is to blame."""
    cause = database_cause(error)
    if cause is None:
        return isinstance(error, InterfaceError)
    if cause.sqlstate is None:
        return isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError)
    return cause.sqlstate.startswith(_AWAY)
