"""What dead and frozen workers leave running, and who ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until
from tests.work.coding.running import Ground
from work.coding import processtree
from work.coding.processtree import Process

DEAF = "trap '' TERM INT HUP"
WRITING = "while :; do echo >> written; sleep 0.01; done"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "job")


@pytest.fixture
def worker(ground: Ground, tmp_path: Path) -> Iterator[ChildProcess]:
    """A worker of its own process that runs programs there."""
    process = ChildProcess(
        "tests.work.coding.running",
        str(ground.tree.parent),
        environment=dict(os.environ),
        log=tmp_path / "worker.log",
    )
    process.expect("ready")
    yield process
    process.close()


def start(worker: ChildProcess, ground: Ground, script: str) -> None:
    """Have the worker run the script, which begins by making the file `started`."""
    worker.say("run", script=f"touch started; {script}")
    wait_until((ground.tree / "started").exists, "the program runs")


def recorded(ground: Ground) -> Process:
    """Return the launcher that the record names."""
    (record,) = ground.records.glob("*.running")
    launcher = processtree.recorded(record.read_text())
    assert launcher is not None
    return launcher


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_worker(
    ground: Ground, worker: ChildProcess, number: signal.Signals
) -> None:
    """failure H65: the worker dies, of whatever; a child that ignores it all dies too."""
    start(worker, ground, f'{DEAF}; setsid sh -c "{DEAF}; {WRITING}" & {WRITING}')
    wait_until(lambda: len(ground.running()) >= 2, "both run")
    os.kill(worker.pid, number)
    worker.wait()
    wait_until(lambda: not ground.running(), "all ended")
    wait_until(lambda: not list(ground.records.iterdir()), "the record is gone")


def test_what_a_frozen_worker_started_is_ended_by_the_next(
    ground: Ground, worker: ChildProcess
) -> None:
    start(worker, ground, f"{DEAF}; {WRITING}")
    worker.freeze()
    assert ground.running()
    ground.end_all()
    assert not ground.running()
    assert list(ground.records.iterdir()) == []
    size = (ground.tree / "written").stat().st_size
    worker.thaw()
    worker.expect("ended")
    assert (ground.tree / "written").stat().st_size == size


def test_what_stands_still_with_its_launcher_is_ended_by_the_next(
    ground: Ground, worker: ChildProcess
) -> None:
    """A whole machine that was frozen looks like this when it goes on."""
    start(worker, ground, f"{DEAF}; {WRITING}")
    launcher = recorded(ground)
    everything = [launcher, *launcher.descendants()]
    for process in everything:
        process.send(signal.SIGSTOP)
    ground.end_all()
    assert not any(process.lives() for process in everything)


def test_what_lost_its_launcher_is_found_by_its_mark(
    ground: Ground, worker: ChildProcess
) -> None:
    start(worker, ground, f'setsid sh -c "{DEAF}; {WRITING}" & {WRITING}')
    wait_until(lambda: len(ground.running()) >= 2, "both run")
    recorded(ground).send(signal.SIGKILL)
    worker.expect("ended")
    ground.end_all()
    assert not ground.running()
    assert list(ground.records.iterdir()) == []


def test_a_number_that_another_process_has_now_is_left_alone(ground: Ground) -> None:
    """failure H66: the recorded process id is used by another process."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        now = Process.now(other.pid)
        assert now is not None
        earlier = Process(now.pid, now.started - 1)
        (ground.records / "one.running").write_text(processtree.record(earlier))
        (ground.records / "two.running").write_text(
            json.dumps({**json.loads(processtree.record(now)), "boot": "an earlier one"})
        )
        (ground.records / "three.running").write_text("torn")
        ground.end_all()
        assert other.poll() is None
        assert list(ground.records.iterdir()) == []
        other.kill()


def test_a_process_is_not_signalled_once_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = Process.now(child.pid)
        assert process is not None
        assert process.lives()
        child.kill()
        child.wait()
        assert not process.lives()
        process.send(signal.SIGKILL)


def test_a_server_of_launchers_that_was_killed_is_started_again(ground: Ground) -> None:
    assert ground.run("true").exit_status == 0
    own = Process.now(os.getpid())
    assert own is not None
    # nearest first: launchers are below it, under the same name
    server = next(one for one in own.descendants() if _is_launcher(one))
    server.send(signal.SIGKILL)
    wait_until(lambda: not server.lives(), "it is gone")
    assert ground.run("true").exit_status == 0


def _is_launcher(process: Process) -> bool:
    try:
        return b"work.coding.launcher" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False
