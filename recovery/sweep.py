"""The one function that everything which recovers calls: thread, beat, commands and admin.

It needs neither the broker nor a free worker. Twice at once, or not at all for an hour, is
safe.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from typing import Final

import structlog
from django.conf import settings
from django.db import close_old_connections, connection

from recovery import connections, liveness, runner
from recovery.database_errors import is_away
from recovery.redaction import describe
from recovery.reports import RecoveryReport

log = structlog.get_logger(__name__)

JITTER: Final = 0.1
STOP_SECONDS: Final = 10.0
# While the database is away a line a second says nothing new.
LOG_EVERY_FAILURES: Final = 60


def sweep(
    limit: int | None = None,
    *,
    kinds: Collection[str] | None = None,
    dry_run: bool = False,
    elect: bool = False,
    patient: bool = False,
    wait: Callable[[float], object] = time.sleep,
) -> dict[str, RecoveryReport]:
    """Bury the dead, settle their orphans; return a report for each kind.

    Args:
        limit: at most so many rows of each kind.
        kinds: only these; all registered ones otherwise.
        dry_run: report the orphans there are, change nothing, bury nobody.
        elect: do nothing, and return nothing, when another process has just begun a pass.
        patient: wait until no runtime is in doubt (see `liveness.bury`).
        wait: how to wait out a grace.
    """
    if not dry_run and not liveness.bury(elect=elect, patient=patient, wait=wait).elected:
        return {}
    reports = {
        kind: _settle(recovery, limit=limit, dry_run=dry_run)
        for kind, recovery in runner.registered().items()
        if kinds is None or kind in kinds
    }
    if not dry_run:
        liveness.record_sweep()
    return reports


def _settle(recovery: runner.Recovery, *, limit: int | None, dry_run: bool) -> RecoveryReport:
    """Settle one kind; its failure keeps no other kind from being swept."""
    try:
        return recovery.settle_orphans(limit=limit, dry_run=dry_run)
    except Exception as error:
        if is_away(error):
            raise
        log.error(
            "recovery.kind_failed", kind=recovery.kind, reason=describe(error), exc_info=error
        )
        return RecoveryReport(recovery.kind, failed=1)


class SweepThread:
    """Sweeps about once a second while its process lives, whatever the database does."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweep", daemon=True)
        self._failures = 0

    def start(self) -> None:
        """Begin to sweep."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sweeping; return when the pass under way is over, or after 10 s."""
        self._stop.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                close_old_connections()
                connections.keep_name()
                reports = sweep(elect=True, wait=self._stop.wait)
                self._failures = 0
                if any(report.failed for report in reports.values()):
                    connection.close()  # what fails for its session's sake has another chance
            except Exception as error:  # noqa: BLE001 - the outermost loop of this thread
                self._failed(error)
        connection.close()

    @staticmethod
    def _pause() -> float:
        # The spread keeps many processes from asking at the same moment.
        spread = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
        return float(settings.HOLDFAST_SWEEP_SECONDS) * spread

    def _failed(self, error: Exception) -> None:
        if self._failures % LOG_EVERY_FAILURES == 0:
            log.warning("sweep.failed", reason=describe(error), exc_info=error)
        self._failures += 1
        connection.close()
