"""A workspace in whatever repository it is given, and beside what others left there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.errors import ErrorCode
from tests.work.coding.repositories import (
    PersonsRepository,
    call,
    job_in,
    shell,
)
from turns.tools.registry import State
from work.coding.errors import WorkspaceRefused


async def test_a_directory_that_no_commit_has_is_worked_in_from_the_top(
    repository: PersonsRepository,
) -> None:
    (repository.top / "untracked").mkdir()
    job = job_in(repository.top)
    job.cwd = str(repository.top / "untracked")
    workspace = await job.open()
    assert "job-1\n" in (await call(workspace, "run_command", argv=["pwd"])).result
    await workspace.close()


@pytest.mark.parametrize("name", ["with space", "Grüße 日本", "-dash", "quo'te\"s"])
async def test_paths_may_hold_anything(tmp_path: Path, name: str) -> None:
    repository = PersonsRepository(tmp_path / name)
    repository.commit({"ä ö/日本 .txt": "one\n", os.fsdecode(b"latin-\xe4"): "two\n"})
    workspace = await job_in(repository.top).open()
    await call(workspace, "edit_file", path="ä ö/日本 .txt", old_text="one", new_text="two")
    listed = (await call(workspace, "list_files", recursive=True)).result
    assert "ä ö/日本 .txt" in listed
    assert "latin-\ufffd" in listed
    assert "1 file" in (await call(workspace, "show_changes")).result
    await workspace.close()
    assert repository.shown("holdfast/job-1:ä ö/日本 .txt") == "two"


async def test_a_bare_repository_is_worked_in(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    repository.git("clone", "--quiet", "--bare", str(repository.top), str(bare))
    workspace = await job_in(bare).open()
    await call(workspace, "write_file", path="new", text="x")
    await workspace.close()
    assert repository.git("show", "holdfast/job-1:new", cwd=bare) == "x"


async def test_a_detached_head_is_left_detached(repository: PersonsRepository) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit({"README.md": "more"})
    repository.git("checkout", "--quiet", "--detach", first)
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="new", text="x")
    await workspace.close()
    assert repository.git("rev-parse", "HEAD") == first
    assert repository.git("rev-parse", "holdfast/job-1^") == first


async def test_a_submodule_is_neither_entered_nor_lost(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    library = PersonsRepository(tmp_path / "library")
    head = library.commit({"lib.py": "canary"})
    repository.git(
        "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.top),
        "vendor/lib",
    )  # fmt: skip
    repository.git("commit", "--quiet", "-m", "Add a library")
    workspace = await job_in(repository.top).open()
    for name, arguments in (
        ("write_file", {"path": "vendor/lib/evil", "text": "x"}),
        ("read_file", {"path": "vendor/lib/lib.py"}),
        ("list_files", {"path": "vendor/lib"}),
    ):
        outcome = await call(workspace, name, **arguments)
        assert outcome.error_code == ErrorCode.PATH_REFUSED
    await shell(workspace, "rmdir vendor/lib; echo x > other")
    await workspace.close()
    changed = repository.git("diff", "--name-only", "main", "holdfast/job-1")
    assert changed == "other"
    assert head in repository.git("ls-tree", "holdfast/job-1", "vendor/lib")


async def test_a_shallow_and_sparse_repository_is_worked_in(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    repository.commit({"a/x": "1", "b/x": "2"})
    sparse = tmp_path / "sparse"
    repository.git("clone", "--quiet", "--depth=1", f"file://{repository.top}", str(sparse))
    repository.git("sparse-checkout", "set", "a", cwd=sparse)
    workspace = await job_in(sparse).open()
    await call(workspace, "write_file", path="a/x", text="3")
    await workspace.close()
    assert repository.git("show", "holdfast/job-1:a/x", cwd=sparse) == "3"
    assert repository.git("show", "holdfast/job-1:b/x", cwd=sparse) == "2"


async def test_what_is_written_outside_of_a_sparse_checkout_is_kept(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    repository.commit({"a/x": "1", "b/x": "2", "b/y": "2"})
    sparse = tmp_path / "sparse"
    repository.git("clone", "--quiet", str(repository.top), str(sparse))
    repository.git("sparse-checkout", "set", "a", cwd=sparse)
    workspace = await job_in(sparse).open()
    assert not (workspace.root / "b").exists()
    for path in ("b/x", "b/new", "c/new"):
        await call(workspace, "write_file", path=path, text="3")
    assert "+++ b/b/x" in (await call(workspace, "show_changes")).result
    done = await call(workspace, "commit", message="Three")
    assert done.result.splitlines()[1:] == ["b/new", "b/x", "c/new"]
    await call(workspace, "write_file", path="b/x", text="4")
    await workspace.close()
    for name, text in (("b/x", "4"), ("b/new", "3"), ("c/new", "3"), ("b/y", "2")):
        assert repository.git("show", f"holdfast/job-1:{name}", cwd=sparse) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [("core.safecrlf", "true"), ("diff.orderFile", "absent")],
)
async def test_what_a_person_has_git_insist_on_keeps_no_job_from_its_work(
    repository: PersonsRepository, key: str, value: str
) -> None:
    repository.commit({".gitattributes": "*.txt text eol=crlf\n"})
    repository.git("config", key, value)
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="new.txt", text="one\ntwo\n")
    assert "+two" in (await call(workspace, "show_changes")).result
    assert (await call(workspace, "commit", message="Two")).state == State.SUCCEEDED
    await workspace.close()
    assert repository.shown("holdfast/job-1:new.txt") == "one\ntwo"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("taken", "branch"),
    [
        (["holdfast/job-12"], "holdfast/job-1"),
        (["holdfast/job-1"], "holdfast/job-1-2"),
        (["holdfast/job-1/sub"], "holdfast/job-1-2"),
        (["holdfast/job-1", "holdfast/job-1-2/sub/sub"], "holdfast/job-1-3"),
        (["holdfast"], "holdfast-job-1"),
        (["holdfast", "holdfast-job-1"], "holdfast-job-1-2"),
        (["holdfast", "holdfast-job-1/sub"], "holdfast-job-1-2"),
    ],
)
async def test_a_name_that_is_taken_is_not_the_jobs(
    repository: PersonsRepository, taken: list[str], branch: str, packed: bool
) -> None:
    for name in taken:
        repository.git("branch", name)
    if packed:
        repository.git("pack-refs", "--all")
    job = job_in(repository.top)
    dead = await job.open()
    assert job.branch == branch
    await call(dead, "write_file", path="new", text="x")
    await dead.release()  # as a death leaves it
    workspace = await job.open()
    assert (job.branch, workspace.branch_name) == (branch, branch)
    assert (await call(workspace, "read_file", path="new")).state == State.SUCCEEDED
    assert f"branch {branch} at" in await workspace.close()
    assert repository.shown(f"refs/heads/{branch}:new") == "x"
    assert repository.branches() == sorted([branch, "main", *taken])


async def test_a_branch_beside_a_persons_goes_where_nothing_is_on_it(
    repository: PersonsRepository,
) -> None:
    repository.git("branch", "holdfast")
    await (await job_in(repository.top).open()).close()
    assert repository.branches() == ["holdfast", "main"]


async def test_a_base_commit_that_is_gone_is_said_so(repository: PersonsRepository) -> None:
    job = job_in(repository.top)
    job.base_commit, job.branch = "1" * 40, "holdfast/job-1"
    with pytest.raises(WorkspaceRefused) as failed:
        await job.open()
    assert failed.value.code == ErrorCode.WORKSPACE_FAILED


async def test_a_worktree_that_git_forgot_is_not_thrown_away(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    workspace = await job.open()
    await call(workspace, "write_file", path="precious", text="x")
    await workspace.release()
    for directory in (repository.common / "worktrees").iterdir():
        directory.rename(directory.parent.parent / "elsewhere")
    with pytest.raises(WorkspaceRefused):
        await job.open()
    assert (workspace.root / "precious").read_text() == "x"


async def test_a_worktree_that_somebody_removed_is_made_again(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    workspace = await job.open()
    await call(workspace, "write_file", path="done", text="x")
    await call(workspace, "commit", message="Done")
    await workspace.release()
    repository.git("worktree", "remove", "--force", str(workspace.root))
    again = await job.open()
    assert (await call(again, "read_file", path="done")).state == State.SUCCEEDED
    await again.close()


async def test_another_databases_job_of_the_same_number_is_put_away_first(
    repository: PersonsRepository, tmp_path: Path
) -> None:
    older = await job_in(repository.top).open()
    await call(older, "write_file", path="older", text="x")
    await older.release()
    other = PersonsRepository(tmp_path / "other")
    other.commit({"a": "1"})
    for directory, branch in (
        (repository.top, "holdfast/job-1-2"),
        (other.top, "holdfast/job-1"),
    ):
        job = job_in(directory)
        workspace = await job.open()
        assert job.branch == branch
        await call(workspace, "write_file", path="newer", text="y")
        await workspace.release()
    assert repository.shown("holdfast/job-1:older") == "x"
    assert repository.shown("holdfast/job-1-2:newer") == "y"


async def test_a_foreign_worktree_whose_repository_is_gone_is_kept_aside(
    repository: PersonsRepository, tmp_path: Path, home: Path
) -> None:
    older = await job_in(repository.top).open()
    await call(older, "write_file", path="older", text="x")
    await older.release()
    repository.top.rename(tmp_path / "moved")
    other = PersonsRepository(tmp_path / "other")
    other.commit({"a": "1"})
    workspace = await job_in(other.top).open()
    await workspace.close()
    (kept,) = (home / "worktrees").iterdir()
    assert (kept / "job-1" / "older").read_text() == "x"


async def test_what_a_program_closed_off_is_kept_and_removed_all_the_same(
    repository: PersonsRepository,
) -> None:
    workspace = await job_in(repository.top).open()
    await shell(
        workspace,
        "mkdir -p deep/er; echo x > deep/er/file; chmod 0 deep/er/file deep/er deep; "
        "mkfifo pipe; ln -s /etc link",
    )
    await workspace.close()
    assert repository.shown("holdfast/job-1:deep/er/file") == "x"
    assert repository.shown("holdfast/job-1:link") == "/etc"
    assert not workspace.root.parent.exists()
