from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.waiting import wait_until
from tests.work.coding.repositories import PersonsRepository, call, job_in
from tests.work.coding.workers import store, worker
from work.coding.places import Place
from work.coding.reaping import Reaped, reap_worktrees


def none_open(_job_ids: Collection[int]) -> Collection[int]:
    return set()


async def leave(repository: PersonsRepository, pk: int, *, edit: bool = True) -> None:
    """Leave a worktree as a worker does that dies."""
    workspace = await job_in(repository.top, pk=pk).open()
    if edit:
        await call(workspace, "write_file", path="precious", text=str(pk))
    await workspace.release()


async def test_worktrees_of_ended_jobs_are_removed_and_nothing_in_them_is_lost(
    repository: PersonsRepository,
) -> None:
    await leave(repository, 1)
    await leave(repository, 2, edit=False)
    await leave(repository, 3)
    assert reap_worktrees(still_open=lambda ids: {3} & set(ids)) == Reaped(removed=(1, 2))
    assert repository.shown("holdfast/job-1:precious") == "1"
    assert repository.branches() == ["holdfast/job-1", "holdfast/job-3", "main"]
    assert not Place(1).base.exists()
    assert (Place(3).tree / "precious").read_text() == "3"
    assert reap_worktrees(still_open=lambda ids: {3} & set(ids)) == Reaped()


async def test_only_those_asked_for_are_looked_at(repository: PersonsRepository) -> None:
    await leave(repository, 1)
    await leave(repository, 2)
    assert reap_worktrees([2, 9], still_open=none_open) == Reaped(removed=(2,))
    assert Place(1).base.exists()


async def test_what_only_has_the_name_of_a_place_is_none_and_stands_in_nobodys_way(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    await leave(repository, 3)
    stray, link = Place(1).base, Place(2).base
    stray.write_text("a file")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").write_text("somebody's")
    link.symlink_to(precious)
    assert reap_worktrees(still_open=none_open) == Reaped(removed=(3,))
    assert (precious / "kept").read_text() == "somebody's"
    assert stray.read_text() == "a file"


def test_an_installation_without_jobs_has_nothing_to_reap() -> None:
    assert reap_worktrees(still_open=none_open) == Reaped()


async def test_a_worktree_in_which_somebody_works_is_left_to_them(
    repository: PersonsRepository,
) -> None:
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="mine", text="x")
    assert reap_worktrees(still_open=none_open) == Reaped(kept=(1,))
    assert "x" in (await call(workspace, "read_file", path="mine")).result
    await workspace.close()
    assert reap_worktrees(still_open=none_open) == Reaped()


@pytest.mark.parametrize("point", ["workspace.begun", "workspace.checked_out"])
async def test_a_half_made_worktree_is_removed_with_its_branch(
    repository: PersonsRepository, tmp_path: Path, point: str
) -> None:
    path = tmp_path / "job.json"
    store(job_in(repository.top), path)
    with worker(path, tmp_path / "log", at=point) as dying:
        wait_until(lambda: list(tmp_path.glob(f"{point}.*.reached")), "it is there")
        dying.kill()
    assert reap_worktrees(still_open=none_open) == Reaped(removed=(1,))
    assert repository.branches() == ["main"]
    assert not Place(1).base.exists()


async def test_what_a_dead_worker_left_running_is_ended_first(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    store(job_in(repository.top), path)
    with worker(path, tmp_path / "log") as frozen:
        frozen.expect("open")
        script = "trap '' TERM; touch started; while :; do sleep 0.01; done"
        frozen.say("call", tool="run_command", argv=["/bin/sh", "-c", script])
        wait_until((Place(1).tree / "started").exists, "it runs")
        frozen.freeze()
        # it lives, so the worktree is left to it
        assert reap_worktrees(still_open=none_open) == Reaped(kept=(1,))
        frozen.kill()
    assert reap_worktrees(still_open=none_open) == Reaped(removed=(1,))
    assert repository.shown("holdfast/job-1:started") == ""


@pytest.mark.parametrize(
    "lock",
    [
        "worktrees/job-1/index.lock",
        "worktrees/job-1/HEAD.lock",
        "refs/heads/holdfast/job-1.lock",
    ],
)
async def test_locks_of_a_git_that_was_killed_keep_no_worktree(
    repository: PersonsRepository, lock: str
) -> None:
    await leave(repository, 1)
    (repository.common / lock).write_text("")
    assert reap_worktrees(still_open=none_open) == Reaped(removed=(1,))
    assert repository.shown("holdfast/job-1:precious") == "1"
    assert [*repository.common.rglob("*.lock")] == []


async def test_a_worktree_whose_repository_is_gone_is_kept(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    await leave(repository, 1)
    repository.top.rename(tmp_path / "moved")
    assert reap_worktrees(still_open=none_open) == Reaped(kept=(1,))
    assert (Place(1).tree / "precious").read_text() == "1"
    (tmp_path / "moved").rename(repository.top)
    assert reap_worktrees(still_open=none_open) == Reaped(removed=(1,))
    assert repository.shown("holdfast/job-1:precious") == "1"


async def test_a_worktree_that_is_kept_is_told_of_once_in_a_process(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    await leave(repository, 1)
    for away in ("moved", "moved again"):
        repository.top.rename(tmp_path / away)
        with capture_logs() as lines:
            for _ in range(3):
                assert reap_worktrees(still_open=none_open) == Reaped(kept=(1,))
        kept = [line for line in lines if line["event"] == "coding.worktree_kept"]
        assert [(line["log_level"], line["job_id"]) for line in kept] == [("warning", 1)]
        (tmp_path / away).rename(repository.top)
        assert reap_worktrees(still_open=none_open) == Reaped(removed=(1,))
        await leave(repository, 1)


async def test_an_older_worker_that_wakes_up_finds_nothing_to_change(
    repository: PersonsRepository,
) -> None:
    workspace = await job_in(repository.top).open()
    await workspace.release()
    assert reap_worktrees(still_open=none_open).removed == (1,)
    await workspace.release()
    assert not Place(1).base.exists()


@pytest.mark.django_db
def test_the_rows_say_which_jobs_have_ended(repository: PersonsRepository) -> None:
    """A job without a row has ended as well: its person was erased."""
    asyncio.run(leave(repository, 1))
    assert reap_worktrees() == Reaped(removed=(1,))
