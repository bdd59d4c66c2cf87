"""Starting child processes that cannot outlive us.

Two things end a child when the process that started it is killed: PR_SET_PDEATHSIG, which the
kernel delivers, and a pipe whose other end closes (`watch_parent`). Both are bound to the
process that calls `start`; PDEATHSIG even to the calling *thread*, so children are started from
the main thread only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
LIFELINE: Final = "HOLDFAST_LIFELINE_FD"
READY: Final = "HOLDFAST_READY_FD"

# Loaded before any fork: the child may not import.
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Account:
    """An operating-system account a child runs as."""

    uid: int
    gid: int


def die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` that ties the child's life to the calling thread.

    CPython runs it after the change of uid, which would clear the setting.
    """
    parent = os.getpid()

    def tie() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # died between fork and prctl
            os._exit(1)

    return tie


def start(
    command: Sequence[str | Path],
    *,
    log: Path | None,
    death_signal: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
    account: Account | None = None,
    cwd: Path = Path("/"),
    lifeline: int | None = None,
    ready: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child in its own session: a Ctrl-C must reach the supervisor alone.

    Raises:
        RuntimeError: called from another thread than the main one; the child would die with it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children are started from the main thread")
    with contextlib.ExitStack() as stack:
        error: int = subprocess.DEVNULL
        if log is not None:
            error = stack.enter_context(log.open("ab")).fileno()
        env = dict(os.environ if environment is None else environment)
        handed_down = {
            name: descriptor
            for name, descriptor in ((LIFELINE, lifeline), (READY, ready))
            if descriptor is not None
        }
        env.update({name: str(descriptor) for name, descriptor in handed_down.items()})
        return subprocess.Popen(  # noqa: S603 - our own commands
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=error,
            stderr=error,
            cwd=cwd,
            env=env,
            start_new_session=True,
            preexec_fn=die_with_parent(death_signal),  # noqa: PLW1509 - only prctl and getppid
            pass_fds=tuple(handed_down.values()),
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )


def watch_parent() -> None:
    """End this process at once when the one that started it is gone.

    Does nothing unless the parent handed down a lifeline. Unlike PDEATHSIG it also notices the
    death of a parent that started us from a thread, and it cannot be cleared.
    """
    raw = os.environ.pop(LIFELINE, "")
    if not raw:
        return
    descriptor = int(raw)
    os.set_inheritable(descriptor, False)

    def wait() -> None:
        while True:
            try:
                if not os.read(descriptor, 1):
                    os._exit(1)
            except InterruptedError:
                continue

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def tell_ready() -> None:
    """Tell the supervisor, if there is one, that this process does its work now."""
    raw = os.environ.pop(READY, "")
    if raw:
        with contextlib.suppress(OSError):
            os.write(int(raw), b"1")
            os.close(int(raw))
