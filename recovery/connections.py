"""The name every database session of this process carries: whose it is.

After a burial the sweep ends the sessions that carry the dead runtime's id, so a process
frozen inside a transaction does not keep rows locked. A process that registers anew renames
the sessions it already has.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connection
from django.db import connections as databases
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

# PostgreSQL cuts a name at 63 bytes: "holdfast " + role (16) + " " + uuid (36) is 62.
NAME_PREFIX: Final = "holdfast"
# What Django puts in for its own, synchronous use.
DJANGOS_OWN: Final = frozenset({"cursor_factory", "context", "autocommit", "prepare_threshold"})

_name: str | None = None
# By the driver's connection, not Django's wrapper: a session that is opened again has no name
# yet.
_named: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def application_name(role: str, runtime_id: UUID) -> str:
    """Return the name of the sessions of one runtime."""
    return f"{NAME_PREFIX} {role} {runtime_id}"


def name_sessions(name: str) -> None:
    """Give `name` to every session this process opens from now on."""
    global _name  # noqa: PLW0603 - one process, one name
    _name = name


def session_name() -> str:
    """Return the name for a session that is not one of Django's."""
    return _name or NAME_PREFIX


def session_parameters() -> dict[str, Any]:
    """Return how Django reaches the database, for a session that is not one of Django's.

    All that the operator said about it: a certificate left out here would keep us away.
    """
    described = databases["default"].get_connection_params()
    return {key: value for key, value in described.items() if key not in DJANGOS_OWN}


def keep_name() -> None:
    """Rename this thread's session if the process has registered anew since it was opened."""
    if connection.connection is not None and not connection.in_atomic_block:
        _apply(connection)


def watch() -> None:
    """Name each session when it is opened."""
    connection_created.connect(_opened, dispatch_uid="recovery.connections")


def _opened(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    _apply(connection)


def _apply(wrapper: BaseDatabaseWrapper) -> None:
    session = wrapper.connection
    if _name is None or _named.get(session) == _name:
        return
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT set_config('application_name', %s, false)", [_name])
    _named[session] = _name
