"""Running programs for a job, from the worker's side of the launcher.

Whatever ends the wait (an answer, a cancel, the worker's death), the launcher ends the program
and all it started. What a dead or frozen worker left is ended by the next one, which finds it
by the record that every launcher keeps beside the worktree.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Final
from uuid import uuid4

import structlog

import work
from recovery.errors import ErrorCode
from work.coding import bounds, processtree
from work.coding.orders import End, Ended, Order
from work.coding.processtree import Process

log = structlog.get_logger(__name__)

PROJECT: Final = Path(work.__file__).parents[1]
# Past the launcher's own limits it is stuck, and ended like one that was left behind.
_MARGIN_SECONDS: Final = processtree.KILL_SECONDS + 10.0
_PIPE_BYTES: Final = 4096
# A server hears of the end of its worker at once, unless it stands still.
_SERVER_SECONDS: Final = 1.0
RECORD_SUFFIX: Final = ".running"


class _Launchers:
    """The server of launchers that this process has, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[int, int]:
        """Return two ends of pipes: one to send an order on, one to read the answer from."""
        with contextlib.ExitStack() as mine, contextlib.ExitStack() as theirs:
            lifeline, order = os.pipe2(os.O_CLOEXEC)
            answer, said = os.pipe2(os.O_CLOEXEC)
            for stack, descriptors in ((mine, (order, answer)), (theirs, (lifeline, said))):
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
            with self._lock:
                self._announce([lifeline, said])
            mine.pop_all()
        return order, answer

    def close(self) -> None:
        """End the server. Launchers that run go on until their own lifelines close."""
        with self._lock:
            if self._orders is not None:
                self._orders.close()
                self._orders = None
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_SERVER_SECONDS)

    def exit_status(self) -> int | None:
        """Return the exit status of the server, None while it runs."""
        with self._lock, contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_SERVER_SECONDS) if self._process is not None else None
        return None

    def _announce(self, descriptors: list[int]) -> None:
        if self._orders is not None:
            try:
                socket.send_fds(self._orders, [b"o"], descriptors)
            except OSError:  # somebody ended it
                self._orders.close()
            else:
                return
        self._orders = self._start_server()
        socket.send_fds(self._orders, [b"o"], descriptors)

    def _start_server(self) -> socket.socket:
        if self._process is not None:
            self._process.wait()
        kept = ("LD_LIBRARY_PATH",)  # the interpreter may need it to start
        ours, its = socket.socketpair()
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-E", "-s", "-S", "-m", "work.coding.launcher"],
                cwd=PROJECT,
                env={
                    "PATH": os.defpath,
                    "LANG": "C.UTF-8",
                    **{name: os.environ[name] for name in kept if name in os.environ},
                },
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return ours


_launchers = _Launchers()
atexit.register(_launchers.close)


class Program:
    """One run of a program. `run` blocks, in a thread; `stop` may be called from any other."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._stopped = False
        self._lifeline = -1

    def run(self) -> Ended:
        """Return how the program ended; nothing that it started is alive then."""
        with self._lock:
            if self._stopped:
                return Ended(End.STOPPED)
            self._lifeline, answer = _launchers.start()
        ended, was_stopped = None, False
        with os.fdopen(answer, "rb") as pipe:
            try:
                if self._say(self._order.encode()):
                    ended = self._heard(pipe)
            finally:
                was_stopped = self._stopped
                self.stop()
                if ended is None:
                    end_recorded(Path(self._order.record))
        if ended is None and not was_stopped:
            log.warning(
                "coding.launcher_failed",
                error_code=ErrorCode.TOOL_FAILED,
                exit_status=_launchers.exit_status(),
            )
        return ended or Ended(End.STOPPED)

    def stop(self) -> None:
        """Let go of the lifeline: the launcher ends the program, and its answer comes soon."""
        with self._lock:
            self._stopped = True
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1

    def _say(self, line: bytes) -> bool:
        """Hand over the order; return whether it was taken. The lifeline stays open."""
        while line:
            with self._lock:  # never into a descriptor that was closed and is another's now
                if self._stopped:
                    return False
                try:
                    line = line[os.write(self._lifeline, line[:_PIPE_BYTES]) :]
                except OSError:  # the launcher died
                    return False
        return True

    def _heard(self, pipe: IO[bytes]) -> Ended | None:
        limits = self._order.limits
        most = limits.timeout_seconds + limits.grace_seconds + _MARGIN_SECONDS
        return Ended.read(pipe) if _readable_within(pipe, most) else None


def _readable_within(pipe: IO[bytes], seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def record_in(directory: Path) -> Path:
    """Return the place for the record of one more program."""
    return directory / f"{uuid4().hex}{RECORD_SUFFIX}"


def end_all_left(directory: Path, mark: str) -> None:
    """End every program that another process started for the job and that still runs.

    `directory` holds the records; `mark` is a variable of their environment, for programs whose
    launcher was killed.
    """
    for record in sorted(directory.glob(f"*{RECORD_SUFFIX}")):
        end_recorded(record)
    marked = f"{mark}".encode()
    if left := processtree.end(lambda: processtree.given(marked), grace_seconds=0.0):
        log.error("coding.processes_remain", count=left)


def end_recorded(record: Path) -> None:
    """End the launcher that the record names, with all below it, and remove the record.

    A process of that number which started at another time is somebody else's and is left alone.
    """
    try:
        launcher = processtree.recorded(record.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        launcher = None
    if launcher is None or not launcher.lives():
        log.info("coding.process_gone", reason="the recorded process has ended")
    elif not _ended_itself(launcher):
        processtree.end(launcher.descendants, grace_seconds=0.0)
        processtree.end(lambda: _alive(launcher), grace_seconds=0.0)
        log.warning("coding.process_killed", pid=launcher.pid)
    record.unlink(missing_ok=True)


def _ended_itself(launcher: Process) -> bool:
    processtree.tell_to_end(launcher)
    return processtree.becomes(lambda: not launcher.lives(), bounds.LAUNCHER_SECONDS)


def _alive(process: Process) -> list[Process]:
    return [process] if process.lives() else []
