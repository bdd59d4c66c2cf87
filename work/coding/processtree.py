"""Which processes descend from which, and ending them: Linux's /proc, and handles on processes.

A process is known by its number and by when it started: numbers are used again. A signal is
sent through a handle (pidfd) opened before the start was compared, so it reaches that process
or none.

The standard library only; see `work.coding.launcher`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_PARENT_FIELD: Final = 1
_STATE_FIELD: Final = 0
_START_FIELD: Final = 19
_THREADS_FIELD: Final = 17
_RESIDENT_FIELD: Final = 21
_ENDED: Final = frozenset({b"Z", b"X", b"x"})
LOOK_SECONDS: Final = 0.02
# How long SIGKILL is repeated before giving up on processes that the kernel holds.
KILL_SECONDS: Final = 5.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STAT_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Process:
    """One process, not its number's next owner."""

    pid: int
    started: int

    @classmethod
    def now(cls, pid: int) -> Process | None:
        """Return the process that has this number, None where none lives."""
        fields = _stat(pid)
        if fields is None or fields[_STATE_FIELD] in _ENDED:
            return None
        return cls(pid, int(fields[_START_FIELD]))

    def lives(self) -> bool:
        """Return whether it has not ended."""
        return Process.now(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Signal it; nothing happens where it has ended or may not be signalled."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                if self.lives():
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)

    def descendants(self) -> list[Process]:
        """Return everything alive below it, nearest first."""
        below: dict[int, list[Process]] = {}
        for pid in _all():
            fields = _stat(pid)
            if fields is not None and fields[_STATE_FIELD] not in _ENDED:
                found = Process(pid, int(fields[_START_FIELD]))
                below.setdefault(int(fields[_PARENT_FIELD]), []).append(found)
        found_below: list[Process] = []
        waiting = [self.pid]
        while waiting:
            children = below.pop(waiting.pop(0), [])
            found_below += children
            waiting += [child.pid for child in children]
        return found_below


def end(
    processes: Callable[[], list[Process]],
    *,
    grace_seconds: float,
    are_gone: Callable[[], bool] | None = None,
) -> int:
    """Return how many of the processes could not be ended: asked first, then killed.

    They are looked for again each time, since they may have started others meanwhile. A look is
    not of one moment, and can miss one whose parent ends during it; `are_gone` is asked where
    somebody knows better.
    """
    gone = are_gone or (lambda: not processes() and not processes())
    if gone():
        return 0
    for process in processes():
        tell_to_end(process)
    if becomes(gone, grace_seconds):
        return 0
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        alive = processes()
        # Standing still they cannot start others while the rest is being killed.
        for process in alive:
            process.send(signal.SIGSTOP)
        for process in alive:
            process.send(signal.SIGKILL)
        if becomes(gone, LOOK_SECONDS):
            return 0
    return max(1, len(processes()))


def tell_to_end(process: Process) -> None:
    """Ask it to end, standing still or not."""
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)


def resident_bytes(process: Process) -> int:
    """Return how much memory the process occupies."""
    fields = _stat(process.pid)
    return int(fields[_RESIDENT_FIELD]) * _PAGE_BYTES if fields else 0


def record(process: Process) -> str:
    """Return the text by which another process finds this one, on this boot of the machine."""
    return json.dumps({"pid": process.pid, "started": process.started, "boot": _boot()})


def recorded(text: str) -> Process | None:
    """Return the process a record names, None where the machine was started again since.

    Raises:
        ValueError: it is no record.
    """
    said = json.loads(text)
    try:
        known = Process(int(said["pid"]), int(said["started"]))
        return known if said["boot"] == _boot() else None
    except (KeyError, TypeError):
        raise ValueError("not a record of a process") from None


def task_count(uid: int) -> int:
    """Return how many threads run under the account; the kernel bounds their number."""
    count = 0
    for pid in _all():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid and (fields := _stat(pid)):  # noqa: PTH116
                count += int(fields[_THREADS_FIELD])
    return count


def given(variable: bytes) -> list[Process]:
    """Return the processes that were started with `variable` (NAME=value) in their
    environment, as far as this process may look."""
    found = []
    for pid in _all():
        with contextlib.suppress(OSError):
            environment = (_PROC / str(pid) / "environ").read_bytes()
            if variable in environment.split(b"\0") and (process := Process.now(pid)):
                found.append(process)
    return found


def becomes(happened: Callable[[], bool], seconds: float) -> bool:
    """Return whether it happens in time."""
    until = time.monotonic() + seconds
    while not happened():
        if time.monotonic() >= until:
            return False
        time.sleep(LOOK_SECONDS / 2)
    return True


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _all() -> Iterator[int]:
    for name in os.listdir(_PROC):  # noqa: PTH208 - a thousand names, several times a second
        if name.isdecimal():
            yield int(name)


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat after the name, which may hold anything."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            raw = os.read(descriptor, _STAT_MAX_BYTES)
        finally:
            os.close(descriptor)
        return raw[raw.rindex(b")") + 2 :].split()
    except (OSError, ValueError):  # it ended meanwhile
        return None
