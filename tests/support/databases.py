"""Databases on the server of a test run: made, cloned from a template, emptied, dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import quote, urlsplit

import psycopg
from django.db import connection, transaction
from psycopg import sql

# What migrations say of the models themselves; making it anew costs more than most tests.
KEPT: Final = {"django_content_type", "auth_permission"}
# Below ten pages the planner does not look at a table's size.
GROWN_BYTES: Final = 8 * 8_192


def address(name: str) -> str:
    """Return the address of the database `name`."""
    base = urlsplit(os.environ["DATABASE_URL"])
    return base._replace(path=f"/{quote(name)}").geturl()


def create(name: str) -> None:
    """Make an empty database."""
    _administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


@contextmanager
def clone(template: str, name: str) -> Iterator[str]:
    """Make a copy of a database that nobody is connected to; yield its address, drop it."""
    _administer(
        sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )
    try:
        yield address(name)
    finally:
        drop(name)


def empty() -> None:
    """Remove what a test has committed, once every open transaction on our tables has ended.

    Truncating gives every table and index a new file, which takes longer than most tests. It is
    left for tables that have grown: a few dead rows are in nobody's way.
    """
    names = [
        name
        for name in connection.introspection.django_table_names(only_existing=True)
        if name not in KEPT
    ]
    tables = sql.SQL(", ").join(map(sql.Identifier, names))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql.SQL("LOCK TABLE {}").format(tables))
        cursor.execute(
            "SELECT max(pg_relation_size(name::regclass)) < %s "
            "AND has_parameter_privilege('session_replication_role', 'SET') "
            "FROM unnest(%s::text[]) AS name",
            [GROWN_BYTES, names],
        )
        if cursor.fetchone() == (True,):
            # without triggers: neither ours, which refuse, nor those of foreign keys
            cursor.execute("SET LOCAL session_replication_role = replica")
            delete = sql.SQL("DELETE FROM {}")
            cursor.execute(
                sql.SQL("; ").join(delete.format(sql.Identifier(name)) for name in names)
            )
        else:
            cursor.execute(sql.SQL("TRUNCATE {}").format(tables))


def drop(name: str) -> None:
    """Drop a database if it is there, whoever may still be connected to it."""
    _administer(
        # FORCE: threads and children of a test may still hold a connection.
        sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    )


def _administer(statement: sql.Composed) -> None:
    name = urlsplit(os.environ["DATABASE_URL"]).path.lstrip("/")
    with psycopg.connect(address(name), autocommit=True) as connection:
        connection.execute(statement)
