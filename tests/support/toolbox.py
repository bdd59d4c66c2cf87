"""Tools that do to a worker what tools must not: block for long, and hold the interpreter.

Registered the way any app registers its tools, by `tests.support.worker_settings`.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from django.apps import AppConfig

RELEASE = "TOOLBOX_RELEASE"


class Toolbox(AppConfig):
    """The app of the test tools."""

    name = "tests.support"
    label = "toolbox"

    def ready(self) -> None:
        from turns.tools import registry
        from turns.tools.registry import Arguments, Effect, Invocation, Tool

        class Nothing(Arguments):
            pass

        class Seconds(Arguments):
            seconds: int

        def block(_: Invocation[Nothing]) -> str:
            release = Path(os.environ[RELEASE])
            while not release.exists():
                time.sleep(0.02)
            return "released"

        def hold_interpreter(invocation: Invocation[Seconds]) -> str:
            # PyDLL keeps the interpreter's lock, as a long garbage collection does
            ctypes.PyDLL(None).sleep(invocation.arguments.seconds)
            return "held"

        registry.register(
            Tool(
                name="block",
                description="Block.",
                arguments=Nothing,
                effect=Effect.READ,
                call=block,
                runs="in_own_thread",
            )
        )
        registry.register(
            Tool(
                name="hold_interpreter",
                description="Hold the interpreter.",
                arguments=Seconds,
                effect=Effect.READ,
                call=hold_interpreter,
                runs="in_own_thread",
            )
        )
