"""A job's place to work: a worktree on a branch of its own, from opening to closing.

Opening is idempotent. The commit it begins from and the name of its branch are committed to the
database before either is used; everything after that can be found again by them, so whoever
claims the job on this machine goes on where the dead one stood.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

import structlog

from recovery.errors import ErrorCode, StaleFence
from recovery.executor import in_thread
from recovery.fences import Fence
from recovery.probes import areach, reach
from turns.tools.registry import Registry, ToolFailed
from turns.tools.runner import in_own_thread
from work.coding import bounds, confinement, processes, repository, worktrees
from work.coding.changes import JobBranch
from work.coding.confinement import Hold
from work.coding.errors import WorkspaceRefused
from work.coding.git import Git, GitFailed
from work.coding.orders import Ended, Limits
from work.coding.paths import Tree
from work.coding.places import Place, State
from work.coding.processes import Program
from work.coding.programs import Programs
from work.coding.repository import Repository
from work.coding.tools import CodingTools
from work.coding.touched import Watch
from work.coding.worktrees import Facts

log = structlog.get_logger(__name__)

T = TypeVar("T")

KEPT_MESSAGE: Final = "Keep what job {job_id} had not committed"
_LANGUAGE: Final = {"LANG": "C.UTF-8"}
_LIMITS: Final = Limits(
    timeout_seconds=bounds.PROGRAM_SECONDS,
    grace_seconds=bounds.PROGRAM_GRACE_SECONDS,
    cpu_seconds=bounds.PROGRAM_CPU_SECONDS,
    data_bytes=bounds.PROGRAM_DATA_BYTES,
    file_bytes=bounds.PROGRAM_FILE_BYTES,
    open_files=bounds.PROGRAM_OPEN_FILES,
    tree_bytes=bounds.PROGRAM_TREE_BYTES,
    tree_processes=bounds.PROGRAM_TREE_PROCESSES,
    disk_left_bytes=bounds.PROGRAM_DISK_LEFT_BYTES,
    head_bytes=bounds.PROGRAM_HEAD_BYTES,
    tail_bytes=bounds.PROGRAM_TAIL_BYTES,
    output_bytes=bounds.PROGRAM_OUTPUT_BYTES,
)


class CodingJob(Protocol):
    """What of a job's row counts here: its fixed request and its checkpoint."""

    pk: int
    cwd: str
    authority: Any
    base_commit: str
    branch: str


class Checkpoint(Protocol):
    """Commits where the job stands, under its fence (`work.transitions`)."""

    def __call__(self, fence: Fence, *, base_commit: str, branch: str) -> object:
        """Raise StaleFence where the fence has moved."""


@dataclass(frozen=True, slots=True)
class Authority:
    """What the person's computer allowed at the job's admission."""

    tier: str
    checks: Mapping[str, list[str]]
    roots: list[str]

    @classmethod
    def of(cls, snapshot: Mapping[str, Any]) -> Authority:
        """Read the snapshot on the job's row."""
        return cls(snapshot["tier"], dict(snapshot["checks"]), list(snapshot["roots"]))


class Workspace:
    """An open worktree. Its tools are `registry()`; at the end it is closed, or released."""

    def __init__(self, opening: _Opening, state: State) -> None:
        self._place = opening.place
        self._programs = opening.programs
        self._git = opening.git
        self._repository = opening.repository
        self._generation = opening.generation
        self._held_open = opening.held_open
        self._state = state
        # Calls that were left behind in their threads must not change anything after the close.
        self._lock = threading.Lock()
        self._is_over = False
        self._git_dir = Path(state.git_dir)
        self.job_id = opening.place.job_id
        self.authority = opening.authority
        self.branch = JobBranch(
            self._git,
            self._place,
            git_dir=self._git_dir,
            branch=state.branch,
            base_commit=state.base_commit,
        )
        self.branch_name = state.branch
        self.base_commit = state.base_commit
        self.tree = Tree(
            self._place.tree,
            staging=self._place.staging,
            submodules=self.branch.submodules,
        )

    @property
    def briefing(self) -> str:
        """What a model should know before its first call, in a few lines."""
        where = self._repository.prefix
        lines = [
            f"You work in a copy of a Git repository, on a branch of its own "
            f"({self.branch_name}). Paths are relative to the top of the repository.",
            f"The job is about the directory {where}/." if where else "",
            "You may read, not change." if self.authority.tier == "probe" else "",
        ]
        if self.authority.tier != "probe" and self.authority.checks:
            lines.append(f"Checks you can run: {', '.join(sorted(self.authority.checks))}.")
        return "\n".join(filter(None, lines))

    def registry(self) -> Registry:
        """Return the tools that the job's authority allows."""
        return CodingTools(self)

    @contextmanager
    def changing(self) -> Iterator[Callable[[], None]]:
        """Keep everything else from changing the worktree meanwhile.

        Gives a function that says whether it is still ours, for the last moment.

        Raises:
            StaleFence: it is not; nothing has happened.
        """
        with self._lock:
            self.require_ours()
            yield self.require_ours

    def require_ours(self) -> None:
        """Return when this worker may still work here.

        Raises:
            StaleFence: the job has a newer generation, or the workspace was closed.
        """
        if self._is_over:
            raise StaleFence
        self._place.require(self._generation)

    def program(self, argv: list[str]) -> Program:
        """Return a check or command, ready to run in the job's directory."""
        held_to = confinement.of_program(
            readable=[self._repository.common, *filter(None, [self._repository.top])],
            writable=[self._place.tree, self._place.scratch],
        )
        return self._programs.prepare(
            argv,
            cwd=self._directory,
            environment={**_LANGUAGE, "PATH": confinement.search_path(held_to)},
            limits=_LIMITS,
            confinement=held_to,
        )

    @property
    def _directory(self) -> Path:
        """The job's directory; the top of the worktree where no commit has it."""
        directory = self._place.tree / self._repository.prefix
        return directory if directory.is_dir() else self._place.tree

    def searcher(self, argv: list[str], limits: Limits, readable: list[Path]) -> Program:
        """Return a program of ours that reads the worktree."""
        held_to = confinement.of_program(
            readable=readable, own=[self._place.tree, self._place.staging]
        )
        return self._programs.prepare(
            argv,
            cwd=processes.PROJECT,
            environment={**_LANGUAGE, "PATH": os.defpath},
            limits=limits,
            confinement=held_to,
            merged=False,
        )

    @property
    def root(self) -> Path:
        """The top of the worktree."""
        return self._place.tree

    @property
    def staging(self) -> Path:
        """A directory for files on their way; no program of the job can reach it."""
        return self._place.staging

    def run(self, program: Program) -> tuple[Ended, list[str]]:
        """Return how the program ended, and what it changed that is none of the job's. That was
        put back."""
        with self.changing():
            watch = self._watch()
            before = watch.look() if watch else None
            ended = self._programs.run(program)
            touched = []
            if worktrees.mend_pointer(self._place, self._git_dir):
                touched.append(".git")
            if watch and before:
                touched += watch.put_back(before)
        return ended, touched

    def read_with(self, program: Program) -> Ended:
        """Return how a program ended that changes nothing."""
        self.require_ours()
        return self._programs.run(program)

    def _watch(self) -> Watch | None:
        if confinement.hold() == Hold.WHOLE:
            return None
        return Watch(
            self._git,
            common=self._repository.common,
            own_git_dir=self._git_dir,
            branch=self.branch_name,
        )

    async def close(self) -> Facts:
        """Keep what is not committed on the job's branch, remove the worktree; return what the
        job leaves behind.

        Where that does not work, all stays and the next host to start tries again.

        Raises:
            StaleFence: a newer generation works here. Nothing was touched.
        """
        self._programs.stop()
        return await in_own_thread(self._close)

    async def release(self) -> None:
        """End the job's programs and leave the worktree as it is, for the next claim."""
        self._programs.stop()
        await in_own_thread(self._release)

    def _close(self) -> Facts:
        with self.changing():
            self._programs.resume()
            try:
                facts = self._take_down()
            finally:
                self._end()
        return facts

    def _take_down(self) -> Facts:
        try:
            facts = worktrees.take_down(
                self._git,
                self._place,
                self._state,
                message=KEPT_MESSAGE.format(job_id=self.job_id),
                still_ours=self.require_ours,
            )
            reach("workspace.taken_down")
            worktrees.remove(self._place.base)
        except (GitFailed, OSError) as error:
            log.error("coding.worktree_kept", job_id=self.job_id, exc_info=error)
            return self._facts()
        return facts

    def _facts(self) -> Facts:
        tip = self.branch.tip()
        if tip == self.base_commit:
            return Facts()
        return Facts(self.branch_name, tip, len(self.branch.changed_files()))

    def _release(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._programs.stop()
        if self._held_open is not None:
            os.close(self._held_open)
            self._held_open = None


async def open_workspace(job: CodingJob, *, fence: Fence, checkpoint: Checkpoint) -> Workspace:
    """Return the job's workspace, made or found again.

    Raises:
        WorkspaceRefused: `outside_roots`, `not_a_repository`, or `workspace_failed`.
        StaleFence: the job is not ours any more.
    """
    opening = _Opening(job, fence)
    try:
        wanted = await opening.in_thread(opening.prepare)
        if (job.base_commit, job.branch) != (wanted.base_commit, wanted.branch):
            await in_thread(
                checkpoint, fence, base_commit=wanted.base_commit, branch=wanted.branch
            )
        await areach("workspace.checkpointed")
        return await opening.in_thread(partial(opening.open, wanted))
    except (GitFailed, OSError) as error:
        opening.give_up()
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

    def __init__(self, job: CodingJob, fence: Fence) -> None:
        self._job = job
        self.generation = fence.generation
        self.place = Place(job.pk)
        self.authority = Authority.of(job.authority)
        self.programs = Programs(self.place, fence.generation)
        self.held_open: int | None = None
        self._lock = threading.Lock()
        self._is_given_up = False

    async def in_thread(self, step: Callable[[], T]) -> T:
        """Return what the step returns; it is let finish alone when nobody waits any more."""

        def run() -> T:
            with self._lock:
                try:
                    return step()
                finally:
                    if self._is_given_up:
                        self._let_go()

        try:
            return await in_own_thread(run)
        except ToolFailed:
            raise WorkspaceRefused(
                ErrorCode.WORKSPACE_FAILED, "The worker has too much to do."
            ) from None

    def give_up(self) -> None:
        """End what runs. What was made stays for the next claim, or for the reaper."""
        self._is_given_up = True
        self.programs.stop()
        if self._lock.acquire(blocking=False):  # otherwise the step lets go
            try:
                self._let_go()
            finally:
                self._lock.release()

    def _let_go(self) -> None:
        if self.held_open is not None:
            os.close(self.held_open)
            self.held_open = None
        if self.place.generation() == self.generation and self.place.state() is None:
            worktrees.remove(self.place.base)  # nothing was begun

    def prepare(self) -> State:
        """Take the place over from whoever had it, and say what is to be made there.

        Nothing in the repository is changed, but for what another job's row once left here.
        """
        job = self._job
        self.place.take(self.generation)
        self.held_open = self.place.hold()
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
            worktrees.take_over(self.git, self.place, state)
        elif state is not None and worktrees.is_adrift(self.place, state):
            raise WorkspaceRefused(
                ErrorCode.WORKSPACE_FAILED, "Git no longer knows the job's working copy."
            )
        else:
            state = worktrees.make(self.git, self.place, wanted, still_ours=self._require_ours)
        return Workspace(self, state)

    def _require_ours(self) -> None:
        self.place.require(self.generation)

    def _clear_foreign(self) -> None:
        """Take down a worktree that is not this job's: one of an earlier database, whose job
        had the same number."""
        state, job = self.place.state(), self._job
        ours = (str(self.repository.common), job.branch, job.base_commit)
        if state is None or (state.repository, state.branch, state.base_commit) == ours:
            return
        try:
            worktrees.take_down(
                self.git.also_writing(Path(state.repository)),
                self.place,
                state,
                message=KEPT_MESSAGE.format(job_id=job.pk),
                still_ours=self._require_ours,
            )
            (self.place.base / "state.json").unlink()
        except (GitFailed, OSError) as error:
            # Its repository is not there now. It is put where nothing looks, and stays.
            kept = self.place.base.with_name(f"{job.pk}-kept-{uuid4().hex[:8]}")
            log.warning("coding.worktree_kept", job_id=job.pk, exc_info=error)
            self.place.base.rename(kept)
            self.place.take(self.generation)
            if self.held_open is not None:
                os.close(self.held_open)
            self.held_open = self.place.hold()
