"""Tools that block for long, and that hold the interpreter."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from turns.tools.registry import Arguments, Effect, Invocation, Tool

# names the file whose appearance ends `block`
RELEASE = "TOOLBOX_RELEASE"


class Nothing(Arguments):
    pass


class Seconds(Arguments):
    seconds: int


def block(_: Invocation[Nothing]) -> str:
    """Block until the test releases it."""
    release = Path(os.environ[RELEASE])
    while not release.exists():
        time.sleep(0.02)
    return "released"


def hold_interpreter(invocation: Invocation[Seconds]) -> str:
    """Keep every other thread from running, as a long garbage collection does."""
    ctypes.PyDLL(None).sleep(invocation.arguments.seconds)  # PyDLL keeps the lock
    return "held"


TOOLS: list[Tool[Any]] = [
    Tool(
        name="block",
        description="Block.",
        arguments=Nothing,
        effect=Effect.READ,
        call=block,
        runs="in_own_thread",
    ),
    Tool(
        name="block_loop",
        description="Do what no tool may: block where the turns are served.",
        arguments=Nothing,
        effect=Effect.READ,
        call=block,
        runs="on_loop",
    ),
    Tool(
        name="hold_interpreter",
        description="Hold the interpreter.",
        arguments=Seconds,
        effect=Effect.READ,
        call=hold_interpreter,
        runs="in_own_thread",
    ),
]
