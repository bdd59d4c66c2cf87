"""A job's place to work while it is open: a worktree on a branch of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from recovery.probes import reach
from turns.tools.registry import Registry
from turns.tools.runner import in_own_thread
from work.coding import bounds, confinement, worktrees
from work.coding.changes import JobBranch
from work.coding.confinement import Hold
from work.coding.errors import WorkspaceLost
from work.coding.git import Git, GitFailed
from work.coding.orders import Ended, Limits
from work.coding.paths import Tree
from work.coding.places import Claim, State
from work.coding.processes import Program
from work.coding.programs import Programs
from work.coding.repository import Repository
from work.coding.touched import Watch
from work.coding.worktrees import Facts
from work.models import Computer

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


@dataclass(frozen=True, slots=True)
class Ground:
    """What a workspace stands on: found, and taken over from whoever had it."""

    claim: Claim
    programs: Programs
    git: Git
    repository: Repository
    authority: Authority
    lock_held: int | None


class Workspace:
    """An open worktree. Its tools are `registry()`; at the end it is closed, or released.

    `tools` makes them for it.
    """

    def __init__(
        self, ground: Ground, state: State, tools: Callable[[Workspace], Registry]
    ) -> None:
        self._tools = tools
        self._claim = ground.claim
        self._place = ground.claim.place
        self._programs = ground.programs
        self._git = ground.git
        self._repository = ground.repository
        self._lock_held = ground.lock_held
        self._state = state
        # Calls that were left behind in their threads must not change anything after the close.
        self._lock = threading.Lock()
        self._is_over = False
        self._is_down = False
        self._closing: asyncio.Future[Facts] | None = None
        self._git_dir = Path(state.git_dir)
        self.job_id = ground.claim.place.job_id
        self.authority = ground.authority
        self.branch = JobBranch(
            self._git,
            self._place,
            git_dir=self._git_dir,
            branch=state.branch,
            base_commit=state.base_commit,
        )
        self.left: Facts | None = None
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
            "You may read, not change." if self.authority.tier == Computer.Tier.PROBE else "",
            "The working copy was gone and was made anew from the branch: what you had not "
            "committed is lost."
            if self._state.lost
            else "",
        ]
        if self.authority.tier != Computer.Tier.PROBE and self.authority.checks:
            lines.append(f"Checks you can run: {', '.join(sorted(self.authority.checks))}.")
        return "\n".join(filter(None, lines))

    def registry(self) -> Registry:
        """Return the tools that the job's authority allows."""
        return self._tools(self)

    @contextmanager
    def changing(self) -> Iterator[Callable[[], None]]:
        """Keep everything else from changing the worktree meanwhile.

        Gives a function that says whether it is still ours, for the last moment.

        Raises:
            WorkspaceLost: it is not; nothing has happened.
        """
        with self._lock:
            self.require_ours()
            yield self.require_ours

    def is_ours(self) -> bool:
        """Return whether this worker may still work here."""
        is_there = worktrees.is_there(self._place, self._state)
        return not self._is_over and is_there and self._claim.is_ours()

    def require_ours(self) -> None:
        """Return when this worker may still work here.

        Raises:
            WorkspaceLost: another claim does, something else or nothing is there, or the
                workspace was closed.
        """
        if not self.is_ours():
            raise WorkspaceLost

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

    def searcher(
        self, argv: list[str], limits: Limits, started_from: Sequence[Path]
    ) -> Program:
        """Return a program of ours that reads the worktree."""
        held_to = confinement.of_searcher(
            started_from=started_from, own=[self._place.tree, self._place.staging]
        )
        return self._programs.prepare(
            argv,
            cwd=self._place.staging,
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
            if self.is_ours() and worktrees.mend_pointer(self._place, self._git_dir):
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

    async def take_down(self) -> str:
        """Keep what is not committed on the job's branch, remove the worktree; return in a
        sentence what the job leaves behind (`left` has the facts). What a later claim must know
        to say the same stays until the close.

        Where that does not work, all stays and the next host to start tries again. What nobody
        waits for any more goes on; the next one waits for that.

        Raises:
            WorkspaceLost: a newer generation works here. Nothing was touched.
        """
        if self._closing is None:
            self._programs.stop()
            self._closing = asyncio.ensure_future(in_own_thread(self._take_down))
        self.left = await asyncio.shield(self._closing)
        return self.left.sentence

    async def close(self) -> str:
        """Take it down, and leave nothing on the machine: the job has ended.

        Raises:
            WorkspaceLost: a newer generation works here. Nothing was touched.
        """
        said = await self.take_down()
        await in_own_thread(self._remove)
        return said

    async def release(self) -> None:
        """End the job's programs and leave the worktree as it is, for the next claim."""
        self._programs.stop()
        await in_own_thread(self._release)

    def _take_down(self) -> Facts:
        with self._lock:
            # somebody may have removed it
            is_gone = not self._is_over and self._place.generation() is None
            try:
                if self._is_over:
                    raise WorkspaceLost
                if not is_gone:
                    self._claim.require()
                return self._taken_down(is_gone=is_gone)
            finally:
                self._end()
                if is_gone and not os.path.lexists(self._place.tree):
                    # The job may have ended in other hands: nothing is left for later.
                    with suppress(WorkspaceLost, OSError):
                        worktrees.remove_place(self._claim)

    def _taken_down(self, *, is_gone: bool) -> Facts:
        self._programs.resume()
        message = KEPT_MESSAGE.format(job_id=self.job_id)
        try:
            if is_gone:  # what Git knows of it goes as well, and what is left is kept
                self._place.take(self._claim.generation)
            facts = worktrees.take_down(self._git, self._claim, self._state, message=message)
            self._is_down = True
            reach("workspace.taken_down")
        except (GitFailed, OSError) as error:
            log.error("coding.worktree_kept", job_id=self.job_id, exc_info=error)
            return self._facts_as_it_stays()
        return facts

    def _remove(self) -> None:
        """Remove the place, unless something stays there, or is gone, or is another's."""
        with self._lock:
            if self._is_down and self._claim.is_ours():
                worktrees.remove_place(self._claim)

    def _facts_as_it_stays(self) -> Facts:
        """Return what is known of a worktree that could not be taken down."""
        state = self._place.state() or self._state
        stays = Facts(stays_at=self._place.stays_at, left_out=state.left_out, lost=state.lost)
        try:
            tip = self.branch.tip()
            changed = self.branch.changed_files() if tip != self.base_commit else []
        except GitFailed:  # the repository is not there any more
            return stays
        if state.is_kept:  # all that is wanting is its removal
            stays = replace(stays, stays_at="")
        if tip == self.base_commit:
            return stays
        return replace(stays, branch=self.branch_name, commit=tip, changed_files=len(changed))

    def _release(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._programs.stop()
        if self._lock_held is not None:
            os.close(self._lock_held)
            self._lock_held = None
