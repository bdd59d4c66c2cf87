"""A control group that counts the processes of one program: the only bound that root obeys.

RLIMIT_NPROC does not count root's processes, and a look every so often comes too late for a
program that multiplies without end. Where no group may be made, nothing is made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_NAME: Final = "holdfast-{pid}"


class TaskGroup:
    """A group for one program and all it starts, or none."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @classmethod
    def made(cls, most: int) -> TaskGroup:
        """Return a group of at most `most` tasks, named after this process."""
        for parent in _parents():
            directory = parent / _NAME.format(pid=os.getpid())
            _remove_abandoned(parent)
            try:
                directory.mkdir(exist_ok=True)
            except OSError:
                continue
            try:
                (directory / "pids.max").write_text(str(most))
            except OSError:  # the controller is not handed down to here
                with contextlib.suppress(OSError):
                    directory.rmdir()
                continue
            return cls(directory)
        return cls(None)

    @property
    def is_there(self) -> bool:
        """Whether there is a bound that holds for root too."""
        return self._directory is not None

    def join(self) -> None:
        """Count the calling process and its children from now on."""
        if self._directory is not None:
            (self._directory / "cgroup.procs").write_text("0")

    @property
    def has_refused(self) -> bool:
        """Whether a process was asked for beyond the bound."""
        if self._directory is None:
            return False
        try:
            said = (self._directory / "pids.events").read_text().split()
        except OSError:
            return False
        return int(dict(zip(said[::2], said[1::2], strict=False)).get("max", "0")) > 0

    def remove(self) -> None:
        """Remove the group; it must be empty."""
        if self._directory is not None:
            with contextlib.suppress(OSError):
                self._directory.rmdir()


def _remove_abandoned(parent: Path) -> None:
    """Remove the groups of processes that died before they could."""
    for directory in parent.glob(_NAME.format(pid="*")):
        if not Path("/proc", directory.name.rpartition("-")[2]).exists():
            with contextlib.suppress(OSError):
                directory.rmdir()


def _parents() -> Iterator[Path]:
    """Yield where groups of the `pids` controller may be made: below our own, of either
    version."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            yield _ROOT / "pids" / path.lstrip("/")
        elif number == "0" and not controllers:
            yield _ROOT / path.lstrip("/")
