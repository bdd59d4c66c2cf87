"""Grows the answers of running turns through the real text log, as a process.

python -m tests.benchmarks.writer, driven by lines of JSON:

    go {per_second, seconds}   -> written {deltas}, when all of it is committed

Hints leave as they do in a worker. It is not a runtime: the turns belong to one that lives.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import django
import uvloop

django.setup()

from recovery.fences import Fence  # noqa: E402
from tests.benchmarks.model import say  # noqa: E402
from turns import events, textlog  # noqa: E402
from turns.models import Turn  # noqa: E402
from turns.textlog import TextLog  # noqa: E402

SLOTS = 20


async def main(fences: dict[int, Fence], per_second: int, seconds: float) -> None:
    """Write at an even pace, the turns spread evenly."""
    loop = asyncio.get_running_loop()
    log = TextLog(textlog.connect, events.announce_many)
    for conversation_id, fence in fences.items():
        log.open(fence, conversation_id)
    log.start()
    every = list(fences.values())
    began, deltas = loop.time(), 0
    for slot in range(int(seconds * per_second * SLOTS)):
        for fence in every[slot % SLOTS :: SLOTS]:
            await log.write(fence, f"{time.time():.6f};......")
            deltas += 1
        await asyncio.sleep(max(0.0, began + (slot + 1) / (per_second * SLOTS) - loop.time()))
    for fence in every:
        await log.flushed(fence)
    await log.stop()
    say("written", deltas=deltas)


def fences() -> dict[int, Fence]:
    """Return the fence of each running turn, by its conversation."""
    rows = Turn.objects.filter(state="running").values_list(
        "conversation_id", "pk", "generation", "claim_token"
    )
    return {
        conversation: Fence(pk, generation, token)
        for conversation, pk, generation, token in rows
        if token is not None
    }


if __name__ == "__main__":
    owned = fences()
    say("loaded", turns=len(owned))
    for line in sys.stdin:
        order = json.loads(line)
        uvloop.run(main(owned, order["per_second"], order["seconds"]))
