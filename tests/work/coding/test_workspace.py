from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from recovery.errors import ErrorCode, StaleFence
from recovery.executor import in_thread
from recovery.fences import Fence
from tests.factories import ComputerFactory, WorkJobFactory, fence_of
from tests.support.waiting import wait_until
from tests.work.coding.repositories import (
    Job,
    PersonsRepository,
    call,
    job_in,
    shell,
)
from turns.tools.registry import State
from work.coding import places, worktrees
from work.coding.errors import WorkspaceLost
from work.coding.opening import open_coding, open_workspace
from work.coding.places import Place
from work.coding.removal import remove
from work.coding.worktrees import Facts
from work.models import WorkJob
from work.transitions import request_cancel


async def test_a_job_works_on_a_branch_of_its_own(repository: PersonsRepository) -> None:
    """behaviour Q1: reads, edits, checks and commits on its own branch alone."""
    before = repository.fingerprint()
    base = repository.git("rev-parse", "main")
    job = job_in(repository.top, checks={"tests": ["/bin/sh", "-c", "grep moon README.md"]})
    workspace = await job.open()
    assert job.checkpoints == [(base, "holdfast/job-1")]
    assert "world" in (await call(workspace, "read_file", path="README.md")).result
    await call(workspace, "edit_file", path="README.md", old_text="world", new_text="moon")
    checked = await call(workspace, "run_checks", name="tests")
    assert (checked.state, "moon" in checked.result) == (State.SUCCEEDED, True)
    committed = await call(workspace, "commit", message="Say moon\n\nIt is nearer.")
    tip = repository.git("rev-parse", "holdfast/job-1")
    assert tip in committed.result
    said = await workspace.close()
    assert workspace.left == Facts("holdfast/job-1", tip, 1)
    assert said == f"The work is on branch holdfast/job-1 at commit {tip}: 1 file changed."
    assert repository.git("log", "--format=%s", "main..holdfast/job-1") == "Say moon"
    assert repository.git("rev-parse", "main") == base
    assert repository.fingerprint(without=["holdfast"]) == {
        **before,
        ".git/refs/heads": repository.fingerprint()[".git/refs/heads"],
    }
    assert not workspace.root.parent.exists()
    assert repository.git("worktree", "list").count("\n") == 0


async def test_what_is_not_committed_is_kept_at_the_end(repository: PersonsRepository) -> None:
    repository.commit({".gitignore": "*.log\n"})
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="new/file", text="precious")
    await call(workspace, "delete_file", path="src/app.py")
    await call(workspace, "write_file", path="noise.log", text="ignored")
    await workspace.close()
    tip = "holdfast/job-1"
    assert repository.git("log", "--format=%s", f"main..{tip}") == (
        "Keep what job 1 had not committed"
    )
    assert repository.git("diff", "--name-status", "main", tip).splitlines() == [
        "A\tnew/file",
        "D\tsrc/app.py",
    ]


async def test_a_job_that_changed_nothing_leaves_nothing(repository: PersonsRepository) -> None:
    before = repository.fingerprint()
    workspace = await job_in(repository.top).open()
    await call(workspace, "read_file", path="README.md")
    assert await workspace.close() == "Nothing was changed in the repository."
    assert workspace.left == Facts()
    assert repository.branches() == ["main"]
    after = repository.fingerprint()
    assert {name for name in after if before.get(name) != after[name]} <= {
        # directories in which something came and went
        ".git", ".git/refs", ".git/refs/heads",
    }  # fmt: skip
    assert before.keys() == after.keys()


async def test_two_jobs_work_in_one_repository_at_once(repository: PersonsRepository) -> None:
    jobs = [job_in(repository.top, pk=pk) for pk in (1, 2, 3)]
    workspaces = await asyncio.gather(*(job.open() for job in jobs))
    await asyncio.gather(
        *(
            call(workspace, "write_file", path="README.md", text=f"{workspace.job_id}\n")
            for workspace in workspaces
        )
    )
    await asyncio.gather(*(call(one, "commit", message="Mine") for one in workspaces))
    await asyncio.gather(*(workspace.close() for workspace in workspaces))
    for pk in (1, 2, 3):
        assert repository.shown(f"holdfast/job-{pk}:README.md") == str(pk)
    assert repository.shown("main:README.md") == "hello\nworld"


async def test_a_branch_of_the_same_name_is_left_alone(repository: PersonsRepository) -> None:
    """Another installation, or another database, counted its jobs as well."""
    repository.git("branch", "holdfast/job-1")
    repository.git("tag", "holdfast/job-1-2", "main")
    job = job_in(repository.top)
    workspace = await job.open()
    assert job.branch == "holdfast/job-1-2"
    await call(workspace, "write_file", path="new", text="x")
    await workspace.close()
    assert repository.git("rev-parse", "holdfast/job-1") == repository.git("rev-parse", "main")
    assert repository.shown("refs/heads/holdfast/job-1-2:new") == "x"


async def test_opening_again_goes_on_where_it_stood(repository: PersonsRepository) -> None:
    job = job_in(repository.top)
    first = await job.open()
    await call(first, "write_file", path="edited", text="not committed")
    await first.release()
    again = await job.open()
    assert len(job.checkpoints) == 1
    assert again.root == first.root
    assert "not committed" in (await call(again, "read_file", path="edited")).result
    await again.close()
    assert repository.shown("holdfast/job-1:edited") == "not committed"


async def test_opening_after_the_close_goes_on_from_the_branch(
    repository: PersonsRepository,
) -> None:
    """The worker died between taking the worktree down and ending the job."""
    job = job_in(repository.top)
    first = await job.open()
    await call(first, "write_file", path="done", text="x")
    await first.close()
    again = await job.open()
    assert "[lines 1 to 1 of 1]\nx" in (await call(again, "read_file", path="done")).result
    assert await again.close() == first.left.sentence if first.left else False


async def test_an_older_generation_changes_nothing_once_a_newer_has_opened(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    older = await job.open()
    newer = await job.open()
    for name, arguments in (
        ("write_file", {"path": "late", "text": "x"}),
        ("edit_file", {"path": "README.md", "old_text": "hello", "new_text": "x"}),
        ("delete_file", {"path": "README.md"}),
        ("commit", {"message": "late"}),
        ("run_command", {"argv": ["touch", "late"]}),
        ("read_file", {"path": "README.md"}),
        ("search_files", {"text": "hello"}),
        ("show_changes", {}),
    ):
        outcome = await call(older, name, **arguments)
        assert (outcome.state, outcome.error_code) == (
            State.INTERRUPTED,
            ErrorCode.RUNTIME_LOST,
        ), name
    with pytest.raises(WorkspaceLost):
        await older.close()
    await older.release()
    assert "[nothing has changed]" in (await call(newer, "show_changes")).result
    await newer.close()
    assert repository.branches() == ["main"]
    with pytest.raises(WorkspaceLost):
        await older.close()


async def test_a_close_that_nobody_waits_for_any_more_comes_to_its_end(
    repository: PersonsRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel may come while the work is put on its branch."""
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="precious", text="x")
    begun, go_on = threading.Event(), threading.Event()
    take_down = worktrees.take_down

    def slowly(*arguments: Any, **options: Any) -> Facts:
        begun.set()
        go_on.wait(60)
        return take_down(*arguments, **options)

    monkeypatch.setattr(worktrees, "take_down", slowly)
    first = asyncio.create_task(workspace.close())
    await asyncio.to_thread(begun.wait, 10)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    second = asyncio.create_task(workspace.close())
    await asyncio.sleep(0)
    go_on.set()
    assert "1 file changed" in await second
    assert repository.shown("holdfast/job-1:precious") == "x"
    assert not Place(1).base.exists()


async def test_a_claim_that_was_overtaken_opens_nothing(repository: PersonsRepository) -> None:
    job = job_in(repository.top)
    old, new = job.claim(), job.claim()
    workspace = await open_workspace(job, fence=new, checkpoint=job.checkpoint)
    with pytest.raises(WorkspaceLost):
        await open_workspace(job, fence=old, checkpoint=job.checkpoint)
    assert (await call(workspace, "read_file", path="README.md")).state == State.SUCCEEDED
    await workspace.close()


async def test_nothing_is_made_when_the_checkpoint_is_refused(
    repository: PersonsRepository,
) -> None:
    def stale(_fence: Fence, **_columns: str) -> None:
        raise StaleFence

    before = repository.fingerprint()
    job = job_in(repository.top)
    with pytest.raises(StaleFence):
        await open_workspace(job, fence=job.claim(), checkpoint=stale)
    assert repository.fingerprint() == before
    assert not Place(1).base.exists()


async def test_a_close_where_somebody_removed_the_place_leaves_nothing_in_the_repository(
    repository: PersonsRepository,
) -> None:
    """What was not committed is lost, and said to be."""
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="precious", text="x")
    remove(Place(1).base)
    assert not workspace.is_ours()
    outcome = await call(workspace, "read_file", path="README.md")
    assert (outcome.state, outcome.error_code) == (State.INTERRUPTED, ErrorCode.RUNTIME_LOST)
    assert "is lost" in await workspace.close()
    assert repository.branches() == ["main"]
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert not Place(1).base.exists()


async def test_a_close_where_the_place_is_gone_keeps_what_was_committed(
    repository: PersonsRepository,
) -> None:
    workspace = await job_in(repository.top).open()
    await call(workspace, "write_file", path="kept", text="x")
    await call(workspace, "commit", message="Keep it")
    remove(Place(1).base)
    assert "holdfast/job-1" in await workspace.close()
    assert repository.shown("holdfast/job-1:kept") == "x"
    assert len(repository.git("worktree", "list").splitlines()) == 1


async def test_a_place_of_a_higher_generation_is_not_opened(
    repository: PersonsRepository,
) -> None:
    Place(1).take(5)
    job = job_in(repository.top)
    with pytest.raises(WorkspaceLost):
        await job.open()
    assert Place(1).generation() == 5
    assert repository.branches() == ["main"]


async def test_calls_left_behind_do_nothing_after_the_close(
    repository: PersonsRepository,
) -> None:
    """A cancelled call goes on in its thread; the close waits for it, and it sees the close."""
    workspace = await job_in(repository.top).open()
    running = asyncio.ensure_future(shell(workspace, "touch started; sleep 1000"))
    await asyncio.to_thread(wait_until, (workspace.root / "started").exists, "the command runs")
    waiting = asyncio.ensure_future(call(workspace, "write_file", path="late", text="x"))
    running.cancel()
    await workspace.close()
    assert (await waiting).state in {State.INTERRUPTED, State.SUCCEEDED}
    assert not workspace.root.parent.exists()
    assert (await call(workspace, "read_file", path="README.md")).state == State.INTERRUPTED


async def test_a_probe_reads_and_is_refused_everything_else(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top, tier="probe", checks={"tests": ["true"]})
    workspace = await job.open()
    assert {tool.name for tool in workspace.registry()} == {
        "list_files", "read_file", "search_files", "show_changes",
    }  # fmt: skip
    for name in (
        "write_file", "edit_file", "delete_file", "commit", "run_checks", "run_command",
    ):  # fmt: skip
        outcome = await call(workspace, name)
        assert (outcome.state, outcome.error_code) == (
            State.REFUSED,
            ErrorCode.COMMAND_REFUSED,
        )
    await workspace.close()


async def test_a_curated_job_runs_checks_and_no_commands(repository: PersonsRepository) -> None:
    job = job_in(repository.top, tier="curated", checks={"tests": ["true"]})
    workspace = await job.open()
    assert (await call(workspace, "run_checks", name="tests")).state == State.SUCCEEDED
    for name, arguments in (
        ("run_command", {"argv": ["true"]}),
        ("run_checks", {"name": "other"}),
    ):
        outcome = await call(workspace, name, **arguments)
        assert (outcome.state, outcome.error_code) == (
            State.REFUSED,
            ErrorCode.COMMAND_REFUSED,
        )
    await workspace.close()


async def test_the_model_is_told_where_it_works(repository: PersonsRepository) -> None:
    job = job_in(repository.top, checks={"tests": ["true"], "lint": ["true"]})
    job.cwd = str(repository.top / "src")
    workspace = await job.open()
    assert "holdfast/job-1" in workspace.briefing
    assert "the directory src/" in workspace.briefing
    assert "lint, tests" in workspace.briefing
    assert str(repository.top) not in workspace.briefing
    assert "/src\n" in (await call(workspace, "run_command", argv=["pwd"])).result
    await workspace.close()


async def test_a_cancelled_opening_leaves_no_program_and_can_be_repeated(
    repository: PersonsRepository,
) -> None:
    job = job_in(repository.top)
    opening = asyncio.ensure_future(job.open())
    await asyncio.to_thread(wait_until, Place(1).running.exists, "it has begun")
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    workspace = await job.open()
    assert (await call(workspace, "read_file", path="README.md")).state == State.SUCCEEDED
    await workspace.close()
    assert repository.branches() == ["main"]


@pytest.mark.django_db(transaction=True)
async def test_an_opening_that_a_cancel_cuts_short_leaves_nothing(
    repository: PersonsRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    make = worktrees.make

    def slowly(*arguments: Any, **options: Any) -> places.State:
        made = make(*arguments, **options)
        begun.set()
        go_on.wait(60)
        return made

    def running_job() -> WorkJob:
        computer = ComputerFactory.create(roots=[str(repository.top)])
        return WorkJobFactory.create(
            person=computer.person, computer=computer, coding=True, running=True
        )

    monkeypatch.setattr(worktrees, "make", slowly)
    job = await in_thread(running_job)
    opening = asyncio.ensure_future(open_coding(job, fence_of(job)))
    await asyncio.to_thread(begun.wait, 10)
    assert len(repository.branches()) == 2
    await in_thread(request_cancel, job.person_id, job.pk)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    go_on.set()
    await asyncio.to_thread(
        wait_until, lambda: not Place(job.pk).base.exists(), "it is taken down"
    )
    assert repository.branches() == ["main"]
    assert len(repository.git("worktree", "list").splitlines()) == 1


def test_a_job_is_what_a_row_is() -> None:
    """The stand-in of these tests has what a workspace needs of `WorkJob`, and no more."""
    assert {"pk", "cwd", "authority", "base_commit", "branch"} <= set(Job.__annotations__)
