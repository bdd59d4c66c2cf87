"""Somebody takes a job's working copy apart: nothing is lost that is there, and it is said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from recovery.errors import ErrorCode
from tests.work.coding.repositories import PersonsRepository, call, job_in
from work.bounds import REPORT_MAX_BYTES
from work.coding import worktrees
from work.coding.errors import WorkspaceLost, WorkspaceRefused
from work.coding.git import GitFailed
from work.coding.places import Place
from work.coding.reaping import Reaped, reap_worktrees
from work.coding.workspace import Workspace


async def with_a_file(repository: PersonsRepository) -> Workspace:
    """Return a workspace in which something was written and not committed."""
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="important.txt", text="precious")
    return workspace


def records(repository: PersonsRepository) -> Path:
    """Return what Git knows of worktrees."""
    return Path(repository.top) / ".git" / "worktrees"


async def test_a_branch_removed_meanwhile_is_made_again_for_what_was_not_committed(
    repository: PersonsRepository,
) -> None:
    workspace = await with_a_file(repository)
    repository.git("update-ref", "-d", "refs/heads/holdfast/job-1")

    said = await workspace.close()

    assert "branch holdfast/job-1 at commit" in said
    assert "made at the end, of what the job had not committed" in said
    assert repository.shown("holdfast/job-1:important.txt") == "precious"


async def test_a_worktree_git_no_longer_knows_stays_and_the_report_says_where(
    repository: PersonsRepository,
) -> None:
    workspace = await with_a_file(repository)
    shutil.rmtree(records(repository))

    said = await workspace.close()

    assert said == (
        "What was not committed could not be put on the branch: it stays on the worker's "
        "machine, in worktrees/1 of its data directory."
    )
    assert (workspace.root / "important.txt").read_text() == "precious"


async def test_a_repository_removed_meanwhile_leaves_the_worktree_and_says_so(
    repository: PersonsRepository,
) -> None:
    workspace = await with_a_file(repository)
    shutil.rmtree(repository.top)

    assert "it stays on the worker's machine, in worktrees/1" in await workspace.close()
    assert (workspace.root / "important.txt").read_text() == "precious"


async def test_a_worktree_that_is_gone_at_the_end_is_said_to_be_lost(
    repository: PersonsRepository,
) -> None:
    workspace = await with_a_file(repository)
    shutil.rmtree(workspace.root)

    assert await workspace.close() == (
        "The working copy was gone before the job was done: what was not committed by then is "
        "lost."
    )


async def test_an_adopter_that_finds_no_worktree_says_so_to_the_model_and_in_the_report(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    first = await job.open()
    await call(first, "write_file", path="important.txt", text="precious")
    await first.release()
    shutil.rmtree(first.root)

    second = await job.open()

    assert "made anew from the branch" in second.briefing
    assert "is lost" in await second.close()


@pytest.mark.parametrize("path", ["s/.git", "pipe"])
async def test_what_git_cannot_keep_is_named_in_the_report(
    repository: PersonsRepository, path: str
) -> None:
    workspace = await job_in(repository.top).open()
    if path == "pipe":
        os.mkfifo(workspace.root / path)
    else:
        (workspace.root / path).mkdir(parents=True)
        (workspace.root / "s/y").write_text("important")

    assert f"Git cannot keep {path.split('/', 1)[0]}" in await workspace.close()


@pytest.mark.parametrize("name", ["p\nThe work is on branch other", "/".join(["d" * 240] * 8)])
async def test_names_of_any_kind_leave_the_report_its_last_line(
    repository: PersonsRepository, name: str
) -> None:
    """That line tells the branch. A report is cut at 8,000 bytes."""
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="kept", text="x")
    for number in range(6):
        pipe = workspace.root / str(number) / name
        pipe.parent.mkdir(parents=True)
        os.mkfifo(pipe)
    said = await workspace.close()
    assert said.startswith("The work is on branch holdfast/job-1 at commit ")
    assert said.isprintable()
    assert said.endswith(" and 1 more: gone with the working copy.")
    assert len(said.encode()) < REPORT_MAX_BYTES / 2


@pytest.mark.parametrize(
    "state",
    [
        None,
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "state": 7}',
        '{"version": 1, "state": {"repository": "", "branch": "", "base_commit": "",'
        ' "left_out": null}}',
    ],
)
async def test_a_worktree_of_which_nothing_is_known_any_more_is_not_thrown_away(
    repository: PersonsRepository, state: str | None
) -> None:
    job = job_in(repository.top)
    workspace = await job.open()
    await call(workspace, "write_file", path="important.txt", text="precious")
    await workspace.release()
    file = Place(1).base / "state-1"
    file.unlink() if state is None else file.write_text(state)
    with pytest.raises(WorkspaceRefused) as refused:
        await job.open()
    assert refused.value.code == ErrorCode.WORKSPACE_FAILED
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(kept=(1,))
    assert (workspace.root / "important.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["holder", "lock", "running"])
async def test_a_place_that_cannot_be_cleared_up_keeps_no_other_from_it(
    repository: PersonsRepository, name: str
) -> None:
    for pk in (1, 2):
        await (await job_in(repository.top, pk=pk).open()).release()
    broken = Place(1).base / name
    if broken.is_dir():
        broken.rmdir()
        broken.touch()
    else:
        broken.unlink()
        broken.mkdir()
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(removed=(2,), kept=(1,))


async def test_a_job_whose_record_of_who_works_there_is_gone_keeps_what_it_did(
    repository: PersonsRepository,
) -> None:
    workspace = await with_a_file(repository)
    Place(1).holder.unlink()
    assert not workspace.is_ours()
    assert "made at the end, of what the job had not committed" in await workspace.close()
    assert repository.shown("holdfast/job-1:important.txt") == "precious"
    assert not Place(1).base.exists()


async def test_places_may_lie_on_another_disk(
    repository: PersonsRepository, home: Path
) -> None:
    """By a link that the operator makes."""
    disk = home.with_name("disk")
    disk.mkdir()
    (home / "worktrees").symlink_to(disk)
    job = job_in(repository.top)
    first = await job.open()
    await call(first, "write_file", path="important.txt", text="precious")
    await first.release()
    await (await job.open()).close()
    assert repository.shown("holdfast/job-1:important.txt") == "precious"
    assert list(disk.iterdir()) == []


async def test_a_job_does_not_work_through_a_link(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    """Somebody's directory behind the name of a place is left as it is."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o500)
    Place(1).base.parent.mkdir()
    Place(1).base.symlink_to(precious)
    (Place(1).base.parent / "1-gone-0123abcd").symlink_to(precious)
    with pytest.raises((WorkspaceLost, WorkspaceRefused)):
        await job_in(repository.top).open()
    reap_worktrees(still_open=lambda _: ())
    assert list(precious.iterdir()) == []
    assert precious.stat().st_mode & 0o777 == 0o500
    assert list(Place(1).base.parent.iterdir()) == [Place(1).base]


@pytest.mark.parametrize("what", ["somebody's repository", "an empty directory", "a file"])
async def test_what_takes_the_place_of_a_worktree_is_not_worked_in_nor_committed(
    repository: PersonsRepository, tmp_path: Path, what: str
) -> None:
    workspace = await with_a_file(repository)
    other = PersonsRepository(tmp_path / "other")
    other.commit({"theirs.txt": "theirs"})
    before = other.fingerprint()
    workspace.root.rename(tmp_path / "moved")
    match what:
        case "somebody's repository":
            workspace.root.symlink_to(other.top)
        case "an empty directory":
            workspace.root.mkdir()
        case _:
            workspace.root.touch()
    assert not workspace.is_ours()
    for name, arguments in (
        ("write_file", {"path": "more", "text": "x"}),
        ("delete_file", {"path": "theirs.txt"}),
        ("commit", {"message": "late"}),
        ("run_command", {"argv": ["touch", "late"]}),
        ("list_files", {}),
    ):
        outcome = await call(workspace, name, **arguments)
        assert outcome.error_code == ErrorCode.RUNTIME_LOST, name
    assert "it stays on the worker's machine, in worktrees/1" in await workspace.close()
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(kept=(1,))
    assert other.fingerprint() == before
    assert repository.git("rev-list", "--count", "main..holdfast/job-1") == "0"


async def test_a_place_that_was_copied_to_another_disk_is_gone_on_in(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    job = job_in(repository.top)
    first = await job.open()
    await call(first, "write_file", path="important.txt", text="precious")
    await first.release()
    old = Place(1).base.rename(tmp_path / "old")
    shutil.copytree(old, Place(1).base, symlinks=True)
    second = await job.open()
    assert second.is_ours()
    await second.close()
    assert repository.shown("holdfast/job-1:important.txt") == "precious"
    assert not Place(1).base.exists()


async def test_a_repository_removed_while_its_worktree_is_removed_leaves_what_is_left(
    repository: PersonsRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await with_a_file(repository)
    moved = tmp_path / "moved"

    def gone(*_: object) -> None:
        repository.top.rename(moved)
        raise GitFailed("worktree", None, "")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(worktrees, "remove_tree", gone)
        assert "it stays on the worker's machine, in worktrees/1" in await workspace.close()
    assert Place(1).base.exists()
    moved.rename(repository.top)
    assert reap_worktrees(still_open=lambda _: ()) == Reaped(removed=(1,))
    assert repository.shown("holdfast/job-1:important.txt") == "precious"
    assert len(repository.git("worktree", "list").splitlines()) == 1
