"""Databases on the server of a test run: made, cloned from a migrated template, dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlsplit

import psycopg
from psycopg import sql


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
