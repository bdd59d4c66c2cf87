"""Named points at which a test can hold a real process, to look at it or to kill it there.

Off unless HOLDFAST_PROBE names points (separated by commas) and HOLDFAST_PROBE_DIR a
directory. A process that reaches such a point writes `<name>.<pid>.reached` there and goes on
once `<name>.release` exists.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

POLL_SECONDS: Final = 0.01

_NAMES = frozenset(os.environ.get("HOLDFAST_PROBE", "").split(",")) - {""}
_DIRECTORY = os.environ.get("HOLDFAST_PROBE_DIR", "")


def reach(name: str) -> None:
    """Say that this process is at `name`, and wait there if a test asked for it."""
    if name in _NAMES and _DIRECTORY:
        for pause in _hold(name):
            time.sleep(pause)


async def areach(name: str) -> None:
    """Say that this task is at `name`, and wait there if a test asked; the loop goes on."""
    if name in _NAMES and _DIRECTORY:
        for pause in _hold(name):
            await asyncio.sleep(pause)


def _hold(name: str) -> Iterator[float]:
    directory = Path(_DIRECTORY)
    partial = directory / f"{name}.{os.getpid()}.partial"
    partial.touch()
    # A test that sees the name sees a process that has arrived.
    partial.replace(directory / f"{name}.{os.getpid()}.reached")
    release = directory / f"{name}.release"
    while not release.exists():
        yield POLL_SECONDS
