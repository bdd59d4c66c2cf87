"""A transition in one statement: one round trip, planned once in a session.

For what is committed thousands of times a second. The statement is its own transaction, unless
one is open; it either writes all of its move or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from django.conf import settings
from django.db import connection


def run(statement: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of `statement`, with its parameters bound by the server.

    It is prepared where the session is ours alone; a pooler gives each transaction to any.
    Errors are Django's, as from its own cursors.
    """
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    session = connection.connection
    if session.prepare_threshold is None and not settings.DATABASE_POOLED:
        session.prepare_threshold = 0
    with connection.wrap_database_errors, psycopg.Cursor(session) as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()
