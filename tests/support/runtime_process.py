"""A small real runtime: a keeper, an event loop that ticks, and what a test tells it to do.

Reads one JSON command a line: sweep, hang, block_tool, open_transaction, ask, stop. Prints what
happens to it. TEST_CLOCK_SKEW_SECONDS makes its clock wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any, Final
from uuid import UUID

import django

_real_time = time.time
_skew = float(os.environ.get("TEST_CLOCK_SKEW_SECONDS", "0"))
time.time = lambda: _real_time() + _skew

django.setup()

from django.db import connection  # noqa: E402

from recovery import bounds  # noqa: E402
from recovery.executor import in_thread  # noqa: E402
from recovery.runtimes import RuntimeKeeper, current_runtime_id  # noqa: E402
from recovery.sweep import SweepThread  # noqa: E402

_out = threading.Lock()
WATCH_SECONDS: Final = 0.02


def report(event: str, **values: Any) -> None:
    """Print one line; whole, whichever thread it comes from."""
    with _out:
        sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
        sys.stdout.flush()


def fenced(runtime_id: UUID) -> None:
    """Called by the keeper when this runtime was buried."""
    report("fenced", id=str(runtime_id))


async def tick(keeper: RuntimeKeeper) -> None:
    """Turn as a worker's loop does."""
    while True:
        keeper.beat_loop()
        await asyncio.sleep(bounds.LOOP_TICK_SECONDS)


async def watch_registrations() -> None:
    """Report each new id."""
    known: UUID | None = None
    while True:
        current = current_runtime_id()
        if current is not None and current != known:
            known = current
            report("registered", id=str(current))
        await asyncio.sleep(WATCH_SECONDS)


def open_transaction(sql: str) -> None:
    """Run `sql` in a transaction and leave it open."""
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute(sql)
    report("transaction_open")


def ask(sql: str) -> None:
    """Report the first row of a query made in an executor thread."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        report("answer", row=[str(value) for value in cursor.fetchone()])


async def obey() -> None:
    """Do what the test says until it says stop."""
    loop = asyncio.get_running_loop()
    sweeper: SweepThread | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        match command.pop("do"):
            case "sweep":
                sweeper = SweepThread()
                sweeper.start()
                report("sweeping")
            case "hang":
                report("hanging")
                time.sleep(command["seconds"])  # noqa: ASYNC251 - the loop hangs on purpose
                report("hung")
            case "block_tool":
                report("blocking")
                await in_thread(time.sleep, command["seconds"])
                report("tool_done")
            case "open_transaction":
                await in_thread(open_transaction, command["sql"])
            case "ask":
                await in_thread(ask, command["sql"])
            case "stop":
                if sweeper is not None:
                    sweeper.stop()
                break


async def main(role: str) -> None:
    """Live until told to stop."""
    keeper = RuntimeKeeper(role, on_fenced=fenced)
    keeper.start()
    tasks = [asyncio.create_task(tick(keeper)), asyncio.create_task(watch_registrations())]
    await obey()
    for task in tasks:
        task.cancel()
    keeper.stop()
    report("stopped")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
