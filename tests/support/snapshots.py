"""A session of its own, in a transaction whose snapshot is taken before what it is to judge."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

__all__ = ["begin", "session"]


@pytest.fixture
def session(database_url: str) -> Iterator[psycopg.Connection]:
    """A session beside Django's; what it has not committed is taken back."""
    with psycopg.connect(database_url) as connection:
        yield connection
        connection.rollback()


def begin(session: psycopg.Connection, isolation: str) -> None:
    """Begin a transaction at this level, with its snapshot if it has one of its own."""
    session.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
    session.execute("SELECT FROM turns_conversation")
