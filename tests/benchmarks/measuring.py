"""Clocks and counters: processor time of processes, commits and log bytes of the server."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import connection

_TICKS: Final = os.sysconf("SC_CLK_TCK")
median = statistics.median


def percentile(values: Iterable[float], share: float) -> float:
    """Return the smallest value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def spread(values: Sequence[float], unit: str = "", *, digits: int = 2) -> str:
    """Return the range of the values, for the noise."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}{unit}"


def cpu_seconds(*pids: int) -> float:
    """Return the processor time the processes have used, their ended children left out."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def backend_pids() -> dict[int, str]:
    """Return the server's sessions of this database, by process id, with their names."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, application_name FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return dict(cursor.fetchall())


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """What the server has counted so far."""

    commits: int
    log_bytes: int

    def since(self, earlier: ServerCounts) -> ServerCounts:
        """Return what was counted after `earlier`."""
        return ServerCounts(self.commits - earlier.commits, self.log_bytes - earlier.log_bytes)


def server_counts() -> ServerCounts:
    """Return the commits of this database, and the bytes of the write-ahead log.

    Sessions report their commits once a second at most, so windows should be longer.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint "
            "FROM pg_stat_database WHERE datname = current_database()"
        )
        return ServerCounts(*cursor.fetchone())


def seconds(call: Callable[[], object]) -> float:
    """Return how long the call took."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@contextmanager
def peak_memory(pid: int | None = None) -> Iterator[Callable[[], float]]:
    """Give a function that says by how many MiB the process grew at most since then."""
    process = Path(f"/proc/{pid or os.getpid()}")
    (process / "clear_refs").write_text("5")
    before = _status_kib(process, "VmRSS")
    yield lambda: (_status_kib(process, "VmHWM") - before) / 1024


def _status_kib(process: Path, name: str) -> int:
    for line in (process / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)
