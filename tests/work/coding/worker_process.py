"""A worker that does one coding job.

`python -m tests.work.coding.worker_process JOB` opens the workspace of the job that the file
JOB describes, says so, and does what it is told: `call` a tool, `take_down`, `close`,
`release`. The file is its database: the checkpoint is written to it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import django

django.setup()

from recovery.fences import Fence  # noqa: E402
from tests.work.coding.repositories import call  # noqa: E402
from tests.work.coding.workers import store, stored  # noqa: E402
from work.coding.opening import open_workspace  # noqa: E402


def _say(event: str, **values: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


async def _work(path: Path) -> None:
    job = stored(path)

    def checkpoint(fence: Fence, *, base_commit: str, branch: str) -> None:
        job.checkpoint(fence, base_commit=base_commit, branch=branch)
        store(job, path)

    fence = job.claim()
    store(job, path)
    workspace = await open_workspace(job, fence=fence, checkpoint=checkpoint)
    _say("open")
    for line in sys.stdin:
        match json.loads(line):
            case {"do": "call", "tool": str(tool), **others}:
                arguments = {str(name): value for name, value in others.items()}
                outcome = await call(workspace, tool, **arguments)
                _say("called", state=outcome.state, result=outcome.result)
            case {"do": "take_down"}:
                _say("taken_down", said=await workspace.take_down())
            case {"do": "close"}:
                _say("closed", said=await workspace.close())
            case {"do": "release"}:
                await workspace.release()
                _say("released")


if __name__ == "__main__":
    asyncio.run(_work(Path(sys.argv[1])))
