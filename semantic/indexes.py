"""The index over a manifest's vectors, for people with more than are compared one by one.

It is made and dropped on a session of its own, outside transactions and without stopping
writers, by one process at a time. A build that was cut short leaves an index that PostgreSQL
calls invalid; the next one replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
import structlog
from django.conf import settings
from django.db import connection
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from recovery.connections import session_name, session_parameters
from semantic import bounds
from semantic.models import Manifest

log = structlog.get_logger()

# One build at a time in a database: "hnsw".
LOCK_KEY: Final = 0x686E7377
# A graph that fits is built several times faster.
BUILD_MEMORY: Final = "256MB"
_LARGEST: Final = """
    SELECT EXISTS (SELECT FROM semantic_embedding WHERE manifest_id = %s
        GROUP BY person_id HAVING count(*) > %s)
"""
# None: there is no such index. False: its build was cut short.
_IS_VALID: Final = """
    SELECT i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE c.relname = %s AND c.relnamespace = current_schema()::regnamespace
"""


def index_name(manifest_id: int) -> str:
    """Return what the index of a manifest is called."""
    return f"semantic_embedding_hnsw_{manifest_id}"


def is_wanted(manifest: Manifest) -> bool:
    """Return whether someone has more vectors than are compared one by one."""
    with connection.cursor() as cursor:
        cursor.execute(_LARGEST, [manifest.pk, bounds.EXACT_MAX_VECTORS])
        (wanted,) = cursor.fetchone()
        return bool(wanted)


def is_built(manifest: Manifest) -> bool:
    """Return whether the manifest's index is whole."""
    with connection.cursor() as cursor:
        cursor.execute(_IS_VALID, [index_name(manifest.pk)])
        return bool(cursor.fetchone() == (True,))


def build_index(manifest: Manifest) -> bool:
    """Make the index of the manifest; return False where another process is at one now.

    It takes minutes for a million vectors. A whole index is left as it is.
    """
    name = sql.Identifier(index_name(manifest.pk))
    create = sql.SQL(
        "CREATE INDEX CONCURRENTLY {name} ON semantic_embedding "
        "USING hnsw ((vector::vector({dimensions})) vector_cosine_ops) "
        "WHERE manifest_id = {manifest}"
    ).format(name=name, dimensions=manifest.dimensions, manifest=manifest.pk)
    with _building() as session:
        if session is None:
            return False
        found = session.execute(_IS_VALID, [index_name(manifest.pk)]).fetchone()
        if found != (True,):
            session.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(name))
            session.execute(create)
            log.info("semantic.index_built", generation=manifest.generation)
    return True


def drop_index(manifest: Manifest) -> bool:
    """Remove the index of a manifest that answers no more; return as `build_index` does."""
    name = sql.Identifier(index_name(manifest.pk))
    with _building() as session:
        if session is None:
            return False
        session.execute(sql.SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(name))
    return True


def left_over() -> list[Manifest]:
    """Return the retired manifests that still have an index."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id FROM semantic_manifest m JOIN pg_class c "
            "ON c.relname = 'semantic_embedding_hnsw_' || m.id "
            "AND c.relnamespace = current_schema()::regnamespace WHERE m.state = 'retired'"
        )
        ids = [pk for (pk,) in cursor.fetchall()]
    return list(Manifest.objects.filter(pk__in=ids).order_by("pk"))


@contextmanager
def _building() -> Iterator[psycopg.Connection[Any] | None]:
    """Give the session that may build, or None while another has the lock."""
    with psycopg.connect(**_session_parameters()) as session:
        for setting, value in (
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("maintenance_work_mem", BUILD_MEMORY),
        ):
            session.execute("SELECT set_config(%s, %s, false)", [setting, value])
        locked = session.execute("SELECT pg_try_advisory_lock(%s)", [LOCK_KEY]).fetchone()
        if locked != (True,):
            yield None
            return
        try:
            yield session
        finally:
            # the server may end a session, and free its lock, a moment after it was left
            with suppress(psycopg.Error):
                session.execute("SELECT pg_advisory_unlock(%s)", [LOCK_KEY])


def _session_parameters() -> dict[str, Any]:
    # A pooler would give each statement another session, and the lock with it.
    direct = settings.DIRECT_DATABASE_URL
    said = conninfo_to_dict(direct) if direct else session_parameters()
    return {**said, "autocommit": True, "application_name": session_name()}
