"""What every worker under measure does around its own loop, by lines of JSON on its pipes:

    -> ready                      it is connected, its loop runs, its queue is empty
    work {jobs}                   that many jobs appear with one commit
    -> done {seconds, log_bytes}  from that commit to the commit that ended the last of them
    stop                          it ends

The end is the server's: the newest commit time among the rows that say so. While jobs run
nobody looks at the tables; the worker counts the calls of its own functions. No Django and
nothing of ours is imported here, since peers run in an environment of their own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

# what a step leaves behind, the same for all
RESULT_BYTES: Final = 200
LOOK_SECONDS: Final = 0.002
PATIENCE_SECONDS: Final = 120.0
POSITION: Final = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


def say(event: str, **values: Any) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def orders() -> Iterator[int]:
    """Yield how many jobs to do, until told to stop."""
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "stop":
            return
        yield order["jobs"]


class Course:
    """Puts jobs in and sees them end. `ended` selects how many have, and the last commit."""

    def __init__(
        self, url: str, *, fill: Callable[[psycopg.Cursor[Any], int], object], ended: str
    ) -> None:
        self._url, self._fill, self._ended = url, fill, ended
        self.done = 0  # raised by the worker's own functions

    def run(self) -> None:
        """Obey until told to stop. Blocks; whoever has an event loop gives it a thread."""
        expected = 0
        with psycopg.connect(self._url, autocommit=True) as session, session.cursor() as cursor:
            say("ready")
            for jobs in orders():
                expected += jobs
                with session.transaction():
                    self._fill(cursor, jobs)
                    began_at = _number(cursor, POSITION)
                began = time.time()
                self._wait(lambda: self.done, expected)
                self._wait(lambda: _number(cursor, self._count), expected)
                ended = cursor.execute(self._last).fetchone()
                assert ended is not None
                say(
                    "done",
                    seconds=ended[0].timestamp() - began,
                    log_bytes=_number(cursor, POSITION) - began_at,
                )

    @property
    def _count(self) -> str:
        return f"SELECT count(*) FROM {self._ended}"

    @property
    def _last(self) -> str:
        return f"SELECT max(pg_xact_commit_timestamp(xmin)) FROM {self._ended}"

    @staticmethod
    def _wait(count: Callable[[], int], expected: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while count() < expected:
            if time.monotonic() > until:
                raise TimeoutError("the jobs did not end")
            time.sleep(LOOK_SECONDS)


def _number(cursor: psycopg.Cursor[Any], statement: str) -> int:
    row = cursor.execute(statement).fetchone()
    assert row is not None
    return int(row[0])
