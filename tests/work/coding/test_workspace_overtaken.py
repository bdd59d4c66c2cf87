"""A worker stands still anywhere in a workspace's life and is overtaken: it harms nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.processes import ChildProcess
from tests.support.waiting import wait_until
from tests.work.coding.repositories import PersonsRepository, call, job_in, shell
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
from work.coding import holders
from work.coding.errors import WorkspaceLost
from work.coding.places import Claim, Place, put_aside
from work.coding.reaping import Reaped, reap_worktrees
from work.coding.workspace import Workspace


def bring_to(process: ChildProcess, path: Path, point: str) -> None:
    """Have the worker do the job up to the point, and stand still there."""
    if point in CLOSING:
        process.expect("open")
        process.say("call", tool="write_file", path="answer", text="42\n")
        process.expect("called")
        process.say("call", tool="commit", message="The answer")
        process.expect("called")
        process.say("close")
    wait_until_at(path, point)


def wake(process: ChildProcess, path: Path, point: str) -> None:
    """Let the worker go on; return when it has found that it is not its job any more."""
    (path.parent / f"{point}.release").touch()
    if point == "workspace.taken_down":  # only the close is left to it
        process.expect("closed")
        return
    wait_until(lambda: not process.is_running, "it has stopped")
    assert "WorkspaceLost" in process.log.read_text().splitlines()[-1]


@pytest.mark.parametrize("point", [*OPENING, *CLOSING])
async def test_a_worker_that_wakes_up_while_its_successor_works_touches_nothing(
    repository: PersonsRepository, path: Path, tmp_path: Path, point: str
) -> None:
    with worker(path, tmp_path / "log", at=point) as frozen:
        bring_to(frozen, path, point)
        job = stored(path)
        workspace = await job.open()
        await call(workspace, "write_file", path="answer", text="42\n")
        (workspace.staging / "half").write_text("on its way")
        # what Git does right now is not ended from outside
        lock = repository.common / "worktrees" / "job-1" / "index.lock"
        lock.touch()
        wake(frozen, path, point)
        assert workspace.is_ours()
        assert lock.exists()
        lock.unlink()
        assert (workspace.staging / "half").read_text() == "on its way"
    assert "42" in (await call(workspace, "read_file", path="answer")).result
    assert "[exit status 0]" in (await shell(workspace, "grep hello README.md")).result
    await call(workspace, "commit", message="The answer")
    assert "by then is lost" not in await workspace.close()
    assert_as_if_nothing_had_happened(repository, job)


@pytest.mark.parametrize("point", [*OPENING, *CLOSING])
async def test_a_worker_that_wakes_up_when_its_successor_is_done_leaves_nothing(
    repository: PersonsRepository, path: Path, tmp_path: Path, point: str
) -> None:
    with worker(path, tmp_path / "log", at=point) as frozen:
        bring_to(frozen, path, point)
        job = await go_on(path)
        wake(frozen, path, point)
    assert_as_if_nothing_had_happened(repository, job)
    assert reap_worktrees(still_open=lambda _: ()) == Reaped()


async def test_a_worker_that_is_done_when_its_successor_is_leaves_nothing(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    with worker(path, tmp_path / "log") as frozen:
        frozen.expect("open")
        frozen.freeze()
        job = await go_on(path)
        frozen.say("close")
        frozen.thaw()
        frozen.expect("closed")
    assert_as_if_nothing_had_happened(repository, job)


async def half_removed(repository: PersonsRepository, path: Path, tmp_path: Path) -> Workspace:
    """Return the workspace of the successor of a worker that died while it removed its own."""
    with worker(path, tmp_path / "log", at="workspace.kept") as dying:
        dying.expect("open")
        dying.say("call", tool="write_file", path="answer", text="42\n")
        dying.expect("called")
        os.mkfifo(Place(1).tree / "pipe")
        dying.say("close")
        wait_until_at(path, "workspace.kept")
        dying.kill()
    for name in ("README.md", "answer", "pipe"):
        (Place(1).tree / name).unlink()
    return await stored(path).open()


async def test_what_a_worker_had_removed_when_it_died_is_not_committed_as_removed(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    workspace = await half_removed(repository, path, tmp_path)
    said = await workspace.close()
    assert said.startswith("The work is on branch holdfast/job-1 at commit ")
    assert "1 file changed" in said
    assert "made at the end, of what the job had not committed" in said
    assert "Git cannot keep pipe" in said
    assert "is lost" not in said
    assert repository.shown("holdfast/job-1:answer") == "42"
    assert repository.shown("holdfast/job-1:README.md") == "hello\nworld"
    assert not Place(1).base.exists()


async def test_a_job_goes_on_from_its_branch_where_its_worker_died_removing_the_worktree(
    repository: PersonsRepository, path: Path, tmp_path: Path
) -> None:
    workspace = await half_removed(repository, path, tmp_path)
    assert "is lost" not in workspace.briefing
    assert "42" in (await call(workspace, "read_file", path="answer")).result
    done = await call(workspace, "write_file", path="more", text="43\n")
    assert done.state == State.SUCCEEDED
    await workspace.close()
    assert repository.git("log", "--format=%s", "main..holdfast/job-1").count("Keep what") == 2
    assert repository.shown("holdfast/job-1:more") == "43"


async def test_what_was_put_aside_to_be_removed_is_removed_by_the_next_to_look(
    repository: PersonsRepository,
) -> None:
    """A worker died over it."""
    workspace = await job_in(repository.top).open()
    with Claim(Place(1), 1).putting_aside(workspace.root) as aside:
        (aside / "src").chmod(0)
    await workspace.release()
    assert reap_worktrees(still_open=set) == Reaped()
    assert not aside.exists()
    assert Place(1).base.exists()


async def test_what_an_overtaken_worker_remembers_late_does_not_count(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    await job.open()
    known = Place(1).state()
    assert known is not None
    newer = await job.open()
    await call(newer, "write_file", path="precious", text="x")
    Claim(Place(1), 1).remember(known.kept(left_out=[], lost=False))
    await newer.release()
    last = await job.open()
    assert (await call(last, "read_file", path="precious")).state == State.SUCCEEDED
    await last.close()


@pytest.mark.parametrize("what", ["tree", "base"])
async def test_what_is_another_workers_by_the_moment_it_is_removed_is_put_back(
    repository: PersonsRepository, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    workspace = await job_in(repository.top).open()
    path = getattr(Place(1), what)
    with monkeypatch.context() as at_the_last_moment:
        at_the_last_moment.setattr(Claim, "require", lambda _: holders.come(Place(1).holder, 2))
        with pytest.raises(WorkspaceLost), Claim(Place(1), 1).putting_aside(path):
            pass
    assert (workspace.root / "README.md").read_text() == "hello\nworld\n"
    assert list(put_aside()) == []


async def test_an_overtaken_worker_keeps_nobody_from_clearing_up(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    older = await job.open()
    newer = await job.open()
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(kept=(1,))
    with pytest.raises(WorkspaceLost):
        await older.close()
    await newer.release()
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(removed=(1,))
