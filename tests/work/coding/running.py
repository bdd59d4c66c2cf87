"""Programs under a launcher, in a directory of their own; and a worker that runs one.

As a process (`python -m tests.work.coding.running BASE`) it is that worker: it runs the script
it is told to, and prints how it ended.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from work.coding import processes, processtree
from work.coding.orders import Ended, Limits, Order
from work.coding.processes import Program
from work.coding.sandbox import Confinement

MIB: Final = 1024 * 1024
LIMITS: Final = Limits(
    timeout_seconds=60.0,
    grace_seconds=0.3,
    cpu_seconds=60,
    data_bytes=1024 * MIB,
    file_bytes=64 * MIB,
    open_files=256,
    tree_bytes=1024 * MIB,
    tree_processes=64,
    disk_left_bytes=0,
    head_bytes=1_000,
    tail_bytes=2_000,
    output_bytes=256 * MIB,
)
SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/proc")


class Ground:
    """A directory that programs may change, with records of them beside it."""

    def __init__(self, base: Path) -> None:
        self.tree = base / "tree"
        self.records = base / "running"
        self.holder = base / "holder"
        for directory in (self.tree, self.records):
            directory.mkdir(parents=True, exist_ok=True)
        if not self.holder.exists():
            self.holder.write_text("1")

    @property
    def mark(self) -> str:
        return f"TMPDIR={self.tree}"

    def program(self, script: str, *, is_held: bool = True, **limits: Any) -> Program:
        return self.words("/bin/sh", "-c", script, is_held=is_held, **limits)

    def words(self, *argv: str, is_held: bool = True, **limits: Any) -> Program:
        held_to = Confinement(SYSTEM, [str(self.tree)]) if is_held else None
        return Program(
            Order(
                argv=list(argv),
                cwd=str(self.tree),
                environment={"PATH": "/usr/bin:/bin", "TMPDIR": str(self.tree)},
                limits=replace(LIMITS, **limits),
                holder=str(self.holder),
                generation=1,
                record=str(processes.record_in(self.records)),
                confinement=held_to,
            )
        )

    def run(self, script: str, *, is_held: bool = True, **limits: Any) -> Ended:
        return self.program(script, is_held=is_held, **limits).run()

    def running(self) -> list[processtree.Process]:
        """Return the programs that run here, wherever they went."""
        return processtree.given(self.mark.encode())

    def end_all(self) -> None:
        """Do what the next worker does."""
        processes.end_all_left(self.records, self.mark)


def text(ended: Ended) -> str:
    return (ended.output.head + ended.output.tail).decode(errors="replace")


class Running:
    """A program in a thread of its own."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ended: Ended | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self) -> Ended:
        self._thread.join(30)
        assert self.ended is not None
        return self.ended

    def _run(self) -> None:
        self.ended = self.program.run()


def _say(**values: str) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    # a worker that is interrupted dies at once; Python would raise wherever it happens to be,
    # and loses the signal where nothing can be raised
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # what is logged must not mix with what is said
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ground = Ground(Path(sys.argv[1]))
    _say(event="ready")
    for line in sys.stdin:
        ended = ground.run(json.loads(line)["script"])
        _say(event="ended", end=ended.end)


if __name__ == "__main__":
    main()
