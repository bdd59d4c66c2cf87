"""A probe holds a real process where a test wants it, and is nothing otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from recovery import probes
from tests.support.processes import ROOT
from tests.support.waiting import wait_until

REACH = "from recovery.probes import reach; reach('here'); reach('there')"
AREACH = (
    "import asyncio\nfrom recovery.probes import areach\n"
    "async def main():\n    await areach('here')\n    await areach('there')\n"
    "asyncio.run(main())"
)


def start(code: str, directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "HOLDFAST_PROBE": "here,there",
            "HOLDFAST_PROBE_DIR": str(directory),
        },
    )


def test_a_process_waits_at_each_named_point_until_it_is_released(tmp_path: Path) -> None:
    for code in (REACH, AREACH):
        directory = tmp_path / str(len(code))
        directory.mkdir()
        process = start(code, directory)
        try:
            for name in ("here", "there"):
                reached = directory / f"{name}.{process.pid}.reached"
                wait_until(reached.exists, f"{name} is reached")
                assert process.poll() is None
                (directory / f"{name}.release").touch()
            assert process.wait(20) == 0
        finally:
            process.kill()


async def test_without_names_a_probe_does_nothing() -> None:
    probes.reach("here")
    await probes.areach("here")
