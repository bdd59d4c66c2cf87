"""A commit that was lost and arrives late: behind it, whoever asked again waits by then."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

from tests.support.pgproxy import Proxy
from tests.support.rivals import Gate
from tests.support.waiting import wait_until


def let_arrive_once_asked_again(lossy: Proxy, gates: Iterable[Gate]) -> None:
    """Let the lost attempt go on when the second waits behind it, and open the gates on which
    the first was held. Blocks; in a thread of its own."""
    try:
        assert lossy.lost.wait(60)
        wait_until(lambda: _waiting_for_locks() >= 2, "both wait")
    finally:
        for each in gates:
            each.open()
        lossy.let_arrive()
        connection.close()


def _waiting_for_locks() -> int:
    """Return how many sessions PostgreSQL holds up behind others."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])
