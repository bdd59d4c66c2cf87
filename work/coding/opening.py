"""Opening a job's workspace, for the first time or again.

Opening is idempotent. The commit it begins from and the name of its branch are committed to the
database before either is used; everything after that can be found again by them, so whoever
claims the job on this machine goes on where the dead one stood.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import structlog

from recovery.errors import ErrorCode
from recovery.executor import in_thread
from recovery.fences import Fence
from recovery.probes import areach
from turns.confirmed import read
from turns.tools.registry import ToolFailed
from turns.tools.runner import in_own_thread
from work.coding import processes, repository, worktrees
from work.coding.errors import WorkspaceLost, WorkspaceRefused
from work.coding.git import Git, GitFailed
from work.coding.places import Claim, Place, State
from work.coding.programs import Programs
from work.coding.reaping import reap_if_over
from work.coding.repository import Repository
from work.coding.tools import tools_of
from work.coding.workspace import KEPT_MESSAGE, Authority, Ground, Workspace
from work.models import WorkJob, WorkStep
from work.transitions import checkpoint_workspace

log = structlog.get_logger(__name__)

T = TypeVar("T")


class CodingJob(Protocol):
    """What of a job's row counts here: its fixed request and its checkpoint."""

    pk: int
    cwd: str
    authority: Any
    base_commit: str
    branch: str


class Checkpoint(Protocol):
    """Commits where the job stands, under its fence (`work.transitions`)."""

    def __call__(self, fence: Fence, /, *, base_commit: str, branch: str) -> object:
        """Raise StaleFence where the fence has moved."""


async def open_coding(job: WorkJob, fence: Fence) -> Workspace:
    """Return the workspace of a coding job under its claim."""
    calls = WorkStep.objects.filter(job_id=job.pk, started_at__isnull=False)
    return await open_workspace(
        job,
        fence=fence,
        checkpoint=checkpoint_workspace,
        has_worked=await read(calls.exists),
    )


async def open_workspace(
    job: CodingJob, *, fence: Fence, checkpoint: Checkpoint, has_worked: bool = False
) -> Workspace:
    """Return the job's workspace, made or found again. Where calls of the job have worked there
    and nothing is found, what they had not committed is said to be lost.

    Raises:
        WorkspaceRefused: as `repository.find` says, or `workspace_failed`.
        WorkspaceLost: another claim works there.
        StaleFence: the job is not ours any more.
    """
    opening = _Opening(job, fence, has_worked=has_worked)
    try:
        wanted = await opening.in_thread(opening.prepare)
        if (job.base_commit, job.branch) != (wanted.base_commit, wanted.branch):
            await in_thread(
                checkpoint, fence, base_commit=wanted.base_commit, branch=wanted.branch
            )
        await areach("workspace.checkpointed")
        return await opening.in_thread(partial(opening.open, wanted))
    except (GitFailed, OSError) as error:
        is_lost = not opening.claim.is_ours()
        opening.give_up()
        if is_lost:  # no wonder that something was not as it had been
            raise WorkspaceLost from None
        log.error("coding.workspace_failed", job_id=job.pk, exc_info=error)
        raise WorkspaceRefused(
            ErrorCode.WORKSPACE_FAILED, "Git could not make the working copy."
        ) from None
    except BaseException:
        opening.give_up()
        raise


class _Opening:
    """The steps between a claim and an open workspace; each blocks, in a thread."""

    repository: Repository
    git: Git

    def __init__(self, job: CodingJob, fence: Fence, *, has_worked: bool) -> None:
        self._job = job
        self._has_worked = has_worked
        self.place = Place(job.pk)
        self.claim = Claim(self.place, fence.generation)
        self.authority = Authority.of(job.authority)
        self.programs = Programs(self.claim)
        self.lock_held: int | None = None
        self._lock = threading.Lock()
        self._is_given_up = False

    async def in_thread(self, step: Callable[[], T]) -> T:
        """Return what the step returns; it is let finish alone when nobody waits any more."""

        def run() -> T:
            try:
                with self._lock:
                    try:
                        return step()
                    finally:
                        if self._is_given_up:
                            self._let_go()
            finally:
                if self._is_given_up and self.claim.is_ours():
                    reap_if_over(self._job.pk)

        try:
            return await in_own_thread(run)
        except ToolFailed:
            raise WorkspaceRefused(
                ErrorCode.WORKSPACE_FAILED, "The worker has too much to do."
            ) from None

    def give_up(self) -> None:
        """End what runs. What was made stays for the next claim, and goes where there is none:
        a step that goes on alone sees to that, or the reaper."""
        self._is_given_up = True
        self.programs.stop()
        if self._lock.acquire(blocking=False):  # otherwise the step lets go
            try:
                self._clear_up()
            finally:
                self._let_go()
                self._lock.release()

    def _clear_up(self) -> None:
        """Leave nothing where nothing was begun. A step that goes on alone does not: whoever
        claims the job next may be here by then."""
        begun = self.place.state() is not None or os.path.lexists(self.place.tree)
        if self.claim.is_ours() and not begun:
            worktrees.remove_place(self.claim)

    def _let_go(self) -> None:
        if self.lock_held is not None:
            os.close(self.lock_held)
            self.lock_held = None

    def prepare(self) -> State:
        """Take the place over from whoever had it, and say what is to be made there.

        Nothing in the repository is changed, but for what another job's row once left here.
        """
        job = self._job
        self.claim = self.place.take(self.claim.generation)
        self.lock_held = self.place.hold()
        processes.end_all_left(self.place.running, self.place.mark)
        reading = Git(self.programs, writable=[self.place.base])
        self.repository = repository.find(reading, roots=self.authority.roots, cwd=job.cwd)
        self.git = reading.also_writing(self.repository.common)
        self._clear_foreign()
        at = self.repository.at
        base_commit = job.base_commit or self.repository.head
        if job.base_commit and self.git.commit_of(base_commit, at=at) is None:
            raise WorkspaceRefused(
                ErrorCode.WORKSPACE_FAILED, "The commit that the job began from is gone."
            )
        branch = job.branch or worktrees.free_branch(self.git, at, job.pk)
        return State(str(self.repository.common), branch, base_commit)

    def open(self, wanted: State) -> Workspace:
        """Return the workspace, its worktree made where there is none to go on with."""
        state = self.place.state()
        if state is not None and worktrees.is_whole(self.place, state):
            worktrees.take_over(self.git, self.claim, state)
        elif worktrees.is_adrift(self.place, state):
            raise WorkspaceRefused(
                ErrorCode.WORKSPACE_FAILED,
                "The job's working copy is unknown by now.",
            )
        else:
            if state is None:
                wanted = replace(wanted, lost=self._has_worked)
            else:
                lost = state.lost or state.is_complete
                wanted = replace(wanted, lost=lost, left_out=state.left_out)
            state = worktrees.make(self.git, self.claim, wanted)
        ground = Ground(
            self.claim,
            self.programs,
            self.git,
            self.repository,
            self.authority,
            self.lock_held,
        )
        return Workspace(ground, state, tools_of)

    def _clear_foreign(self) -> None:
        """Take down a worktree that is not this job's: one of an earlier database, whose job
        had the same number."""
        state, job = self.place.state(), self._job
        ours = (str(self.repository.common), job.branch, job.base_commit)
        if state is None or (state.repository, state.branch, state.base_commit) == ours:
            return
        try:
            git = self.git.also_writing(Path(state.repository))
            message = KEPT_MESSAGE.format(job_id=job.pk)
            worktrees.take_down(git, self.claim, state, message=message)
            self.claim.require()
            self.place.forget()
        except (GitFailed, OSError) as error:
            self.claim.require()
            # Its repository is not there now. It is put where nothing looks, and stays.
            kept = self.place.base.with_name(f"{job.pk}-kept-{uuid4().hex[:8]}")
            log.warning("coding.worktree_kept", job_id=job.pk, exc_info=error)
            self.place.base.rename(kept)
            self.place.take(self.claim.generation)
            if self.lock_held is not None:
                os.close(self.lock_held)
            self.lock_held = self.place.hold()
