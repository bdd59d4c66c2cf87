"""Waiting for something to become true. The time limit only turns a hang into a failure."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

LOOK_SECONDS: Final = 0.02


def wait_until(happened: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Return when `happened()` is true; fail naming `what` when it is not in time."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(LOOK_SECONDS)


@contextmanager
def untimed() -> Iterator[None]:
    """Let no test's time run out meanwhile: what is made for all is no work of the first."""
    left = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *left)
