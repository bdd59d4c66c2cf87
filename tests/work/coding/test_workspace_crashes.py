"""A worker is killed at every point of a workspace's life; the next one goes on from there."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until
from tests.work.coding.repositories import PersonsRepository, call, shell
from tests.work.coding.workers import (
    CLOSING,
    OPENING,
    assert_as_if_nothing_had_happened,
    go_on,
    stored,
    wait_until_at,
    worker,
)
from turns.tools.registry import State
from work.coding.places import Place

# What Git is asked to do while a job opens, commits and closes, where it changes something.
VERBS: Final = (
    "update-ref", "worktree", "symbolic-ref", "read-tree", "add", "write-tree", "commit-tree",
)  # fmt: skip


@pytest.mark.parametrize("point", OPENING)
async def test_a_worker_that_dies_while_it_opens_is_followed_by_another(
    repository: PersonsRepository, path: Path, tmp_path: Path, point: str
) -> None:
    with worker(path, tmp_path / "log", at=point) as dying:
        wait_until_at(path, point)
        dying.kill()
    job = await go_on(path)
    assert_as_if_nothing_had_happened(repository, job)
    # the checkpoint is written once and holds
    assert len(job.checkpoints) == 1


@pytest.mark.parametrize("point", CLOSING)
async def test_a_worker_that_dies_while_it_closes_is_followed_by_another(
    repository: PersonsRepository, path: Path, tmp_path: Path, point: str
) -> None:
    with worker(path, tmp_path / "log", at=point) as dying:
        dying.expect("open")
        dying.say("call", tool="write_file", path="answer", text="42\n")
        dying.expect("called")
        dying.say("call", tool="commit", message="The answer")
        dying.expect("called")
        dying.say("close")
        wait_until_at(path, point)
        dying.kill()
    assert_as_if_nothing_had_happened(repository, await go_on(path))


async def test_a_worker_that_dies_before_it_could_report_is_followed_by_one_that_says_the_same(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as dying:
        dying.expect("open")
        dying.say("call", tool="write_file", path="answer", text="42\n")
        dying.expect("called")
        os.mkfifo(Place(1).tree / "pipe")
        dying.say("take_down")
        said = dying.expect("taken_down")["said"]
        dying.kill()
    assert "Git cannot keep pipe" in said
    workspace = await stored(path).open()
    assert await workspace.take_down() == said
    assert await workspace.close() == said
    assert not Place(1).base.exists()


class SlowGit:
    """A Git that stands still at one verb: before it does anything, or when all is done."""

    def __init__(self, directory: Path, verb: str, moment: str) -> None:
        self.directory = directory
        directory.mkdir()
        git = shutil.which("git")
        # where Git may write
        hold = 'touch "$TMPDIR/ready"; exec sleep 1000'
        act = {
            "before": f'then {hold}; fi; exec {git} "$@"',
            "after": f'then {git} "$@"; {hold}; fi; exec {git} "$@"',
        }[moment]
        program = directory / "git"
        program.write_text(f'#!/bin/sh\nif [ "$1" = {verb} ] && [ -e {directory}/on ]; {act}\n')
        program.chmod(0o755)

    def on(self) -> None:
        """Stand still from now on."""
        (self.directory / "on").touch()

    def wait(self) -> None:
        """Return when it stands still."""
        wait_until((Place(1).temporary / "ready").exists, "Git stands still")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", VERBS)
async def test_a_worker_that_dies_while_git_works_is_followed_by_another(
    repository: PersonsRepository, path: Path, tmp_path: Path, verb: str, moment: str
) -> None:
    git = SlowGit(tmp_path / "slow", verb, moment)
    environment = {"PATH": f"{git.directory}:/usr/bin:/bin"}
    with worker(path, tmp_path / "log", environment=environment) as dying:
        if verb in {"add", "write-tree", "commit-tree"}:
            dying.expect("open")
            dying.say("call", tool="write_file", path="answer", text="42\n")
            dying.expect("called")
            git.on()
            dying.say("call", tool="commit", message="The answer")
        else:
            git.on()
        git.wait()
        dying.kill()
    assert_as_if_nothing_had_happened(repository, await go_on(path))


async def test_edits_of_a_worker_that_died_are_there(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as dying:
        dying.expect("open")
        dying.say("call", tool="write_file", path="answer", text="42\n")
        dying.expect("called")
        dying.kill()
    workspace = await stored(path).open()
    assert "42" in (await call(workspace, "read_file", path="answer")).result
    await workspace.close()
    assert repository.shown("holdfast/job-1:answer") == "42"


async def test_a_commit_whose_outcome_was_lost_is_not_made_twice(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as dying:
        dying.expect("open")
        dying.say("call", tool="write_file", path="answer", text="42\n")
        dying.expect("called")
        dying.say("call", tool="commit", message="The answer")
        dying.expect("called")
        dying.kill()
    workspace = await stored(path).open()
    again = await call(workspace, "commit", message="The answer")
    tip = repository.git("rev-parse", "holdfast/job-1")
    assert again.result == f"Nothing has changed since {tip}, so there is no new commit."
    await workspace.close()
    assert repository.git("rev-list", "--count", "main..holdfast/job-1") == "1"


async def test_locks_of_a_git_that_was_killed_are_removed(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as dying:
        dying.expect("open")
        dying.kill()
    own = repository.common / "worktrees" / "job-1"
    for lock in (
        own / "index.lock",
        own / "HEAD.lock",
        repository.common / "refs/heads/holdfast/job-1.lock",
    ):
        lock.write_text("")
    # what is not the job's is not touched
    persons = repository.common / "index.lock"
    persons.write_text("")
    job = await go_on(path)
    persons.unlink()
    assert_as_if_nothing_had_happened(repository, job)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_command_of_a_dead_worker_does_not_go_on(
    path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with worker(path, tmp_path / "log") as dying:
        start_writing(dying)
        tree = Place(1).tree
        wait_until((tree / "written").exists, "it writes")
        os.kill(dying.pid, number)
        dying.wait()
    workspace = await stored(path).open()
    size = (tree / "written").stat().st_size
    await shell(workspace, "sleep 0.3")
    assert (tree / "written").stat().st_size == size
    await workspace.close()


async def test_a_command_of_a_frozen_worker_does_not_go_on_beside_its_successor(
    path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as frozen:
        start_writing(frozen)
        tree = Place(1).tree
        wait_until((tree / "written").exists, "it writes")
        frozen.freeze()
        workspace = await stored(path).open()
        size = (tree / "written").stat().st_size
        await shell(workspace, "sleep 0.3")
        assert (tree / "written").stat().st_size == size
        frozen.thaw()
        assert frozen.expect("called")["state"] != State.SUCCEEDED
        frozen.say("call", tool="write_file", path="late", text="x")
        assert frozen.expect("called")["state"] == State.INTERRUPTED
        frozen.say("call", tool="run_command", argv=["touch", "late"])
        assert frozen.expect("called")["state"] == State.INTERRUPTED
    assert not (tree / "late").exists()
    await workspace.close()


def start_writing(process: ChildProcess) -> None:
    process.expect("open")
    script = "trap '' TERM; while :; do echo >> written; sleep 0.01; done"
    process.say("call", tool="run_command", argv=["/bin/sh", "-c", script])
