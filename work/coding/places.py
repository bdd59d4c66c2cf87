"""Where a job's things lie on this machine, and which generation of the job may touch them.

HOLDFAST_HOME/worktrees/JOB/
    lock        held by the process that works here, as long as it lives
    holder      which generations have come to work here; one that finds a newer one stops
    state.json  which repository, branch and commit; how far making or removing has come
    job-JOB/    the worktree
    scratch/    HOME and TMPDIR of its programs
    staging/    files on their way to their places
    running/    a record of each program that runs
HOLDFAST_HOME/worktrees/JOB-gone-…
    what is being removed of it
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from django.conf import settings

from work.coding import holders
from work.coding.errors import WorkspaceLost

_VERSION: Final = 1


def all_places() -> Iterator[Place]:
    """Yield the places that jobs of this installation have on this machine."""
    with suppress(FileNotFoundError):
        for directory in sorted(_worktrees().iterdir()):
            is_ours = directory.is_dir() and not directory.is_symlink()
            if is_ours and directory.name.isdecimal():
                yield Place(int(directory.name))


def put_aside() -> Iterator[Path]:
    """Yield what nobody may have come to remove (`Place.put_aside`)."""
    yield from _worktrees().glob("*-gone-*")


def _worktrees() -> Path:
    return Path(settings.HOLDFAST_HOME).resolve() / "worktrees"


@dataclass(frozen=True, slots=True)
class State:
    """What must be known of a worktree to go on with it, or to take it down."""

    repository: str
    branch: str
    base_commit: str
    # Git's own directory for the worktree, once that is complete and may be worked in
    git_dir: str = ""
    # an earlier worktree was gone, with whatever had not been committed in it
    lost: bool = False
    # everything that Git can keep is on the branch: what lies here may be half removed
    is_kept: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether something may have been done in it that is not kept yet."""
        return bool(self.git_dir) and not self.is_kept

    def completed(self, git_dir: Path) -> State:
        """Return it with the worktree there."""
        return replace(self, git_dir=str(git_dir))

    def kept(self, *, left_out: Iterable[str], lost: bool) -> State:
        """Return it with nothing in the worktree that is still needed."""
        return replace(self, is_kept=True, left_out=tuple(left_out), lost=lost)


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one job."""

    job_id: int

    @property
    def base(self) -> Path:
        """Everything of the job."""
        return _worktrees() / str(self.job_id)

    @property
    def stays_at(self) -> str:
        """Where it is below HOLDFAST_HOME, for a person who looks for what was kept."""
        return f"{self.base.parent.name}/{self.base.name}"

    @property
    def tree(self) -> Path:
        """The worktree. Git names its own directory for it after the last part."""
        return self.base / f"job-{self.job_id}"

    @property
    def scratch(self) -> Path:
        """What programs may fill besides the worktree."""
        return self.base / "scratch"

    @property
    def home(self) -> Path:
        """HOME of programs."""
        return self.scratch / "home"

    @property
    def temporary(self) -> Path:
        """TMPDIR of programs."""
        return self.scratch / "tmp"

    @property
    def staging(self) -> Path:
        """Where files are written before they take their places."""
        return self.base / "staging"

    @property
    def running(self) -> Path:
        """Records of programs."""
        return self.base / "running"

    @property
    def holder(self) -> Path:
        """The generations that have come to work here, a line each."""
        return self.base / "holder"

    @property
    def mark(self) -> str:
        """A variable in the environment of every program of the job."""
        return f"TMPDIR={self.temporary}"

    def take(self, generation: int) -> None:
        """Make the generation the one that works here. Older ones stop when they look.

        Raises:
            WorkspaceLost: a newer one works here.
        """
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        holders.come(self.holder, generation)
        self.require(generation)
        for directory in (self.home, self.temporary, self.staging, self.running):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def hold(self) -> int | None:
        """Return a descriptor that shows others that a living process works here, None where
        one does already. It goes with the process."""
        lock = os.open(self.base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    def require(self, generation: int) -> None:
        """Return when the generation still works here.

        Raises:
            WorkspaceLost: it does not.
        """
        if self.generation() != generation:
            raise WorkspaceLost

    def generation(self) -> int | None:
        """Return the generation that works here, None where none does."""
        return holders.newest(self.holder)

    def put_aside(self, path: Path) -> Path:
        """Return where what lay at the path lies now, to be removed: the path is free at once,
        however long that takes and whoever stands still meanwhile."""
        aside = _worktrees() / f"{self.job_id}-gone-{uuid4().hex[:8]}"
        path.rename(aside)
        return aside

    def state(self) -> State | None:
        """Return what is known of the worktree, None where nothing was begun or somebody else
        has written there."""
        try:
            said = json.loads((self.base / "state.json").read_text())
            state = State(**said["state"]) if said["version"] == _VERSION else None
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None
        return state and replace(state, left_out=tuple(state.left_out))

    def remember(self, state: State) -> None:
        """Keep the state, over a loss of power too."""
        said = {"version": _VERSION, "state": asdict(state)}
        _replace(self.base / "state.json", json.dumps(said, indent=1))


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
