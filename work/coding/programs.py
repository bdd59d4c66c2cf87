"""The programs that one worker runs for one job: all can be stopped at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from work.coding.orders import Ended, Limits, Order
from work.coding.places import Claim
from work.coding.processes import Program, record_in
from work.coding.sandbox import Confinement


class Programs:
    """What runs for a job under one claim."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._place = claim.place
        self._lock = threading.Lock()
        self._stopped = False
        self._running: set[Program] = set()

    def prepare(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        limits: Limits,
        confinement: Confinement | None,
        merged: bool = True,
    ) -> Program:
        """Return a program that is ready to run, in the job's own HOME and TMPDIR."""
        return Program(
            Order(
                argv=list(argv),
                cwd=str(cwd),
                environment={
                    **environment,
                    "HOME": str(self._place.home),
                    "TMPDIR": str(self._place.temporary),
                },
                limits=limits,
                holder=str(self._place.holder),
                generation=self._claim.generation,
                record=str(record_in(self._place.running)),
                confinement=confinement,
                merged=merged,
            )
        )

    def run(self, program: Program) -> Ended:
        """Return how the program ended. After `stop` it does not start.

        Raises:
            WorkspaceLost: another generation works here, or none; nothing was started.
        """
        self._claim.require()
        with self._lock:
            self._running.add(program)
            if self._stopped:
                program.stop()
        try:
            return program.run()
        finally:
            with self._lock:
                self._running.discard(program)

    def stop(self) -> None:
        """End what runs and let nothing start any more."""
        with self._lock:
            self._stopped = True
            for program in self._running:
                program.stop()

    def resume(self) -> None:
        """Let programs start again: those that put things in order after a stop."""
        with self._lock:
            self._stopped = False
