"""Where a job's things lie on this machine, and which generation of the job may touch them.

HOLDFAST_HOME/worktrees/JOB/
    lock        held by the process that works here, as long as it lives
    holder      which generations have come to work here; one that finds a newer one stops
    state-N     what generation N knows of the worktree, and how far making or removing it has
                come: repository, branch and commit. The newest one's counts.
    job-JOB/    the worktree
    scratch/    HOME and TMPDIR of its programs
    staging/    files on their way to their places
    running/    a record of each program that runs
HOLDFAST_HOME/worktrees/JOB-gone-…
    what is being removed of it
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final
from uuid import uuid4

from django.conf import settings

from work.coding import holders
from work.coding.errors import WorkspaceLost

_VERSION: Final = 1
_STATE: Final = "state-"
_GONE: Final = "-gone-"


def all_places() -> Iterator[Place]:
    """Yield the places that jobs of this installation have on this machine."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for directory in sorted(_worktrees().iterdir()):
            is_ours = directory.is_dir() and not directory.is_symlink()
            if is_ours and directory.name.isdecimal():
                yield Place(int(directory.name))


def put_aside() -> Iterator[Path]:
    """Yield what nobody may have come to remove (`Claim.putting_aside`)."""
    yield from _worktrees().glob(f"*{_GONE}*")


def _worktrees() -> Path:
    return (Path(settings.HOLDFAST_HOME) / "worktrees").resolve()


@dataclass(frozen=True, slots=True)
class State:
    """What must be known of a worktree to go on with it, or to take it down."""

    repository: str
    branch: str
    base_commit: str
    # Git's own directory for the worktree, once that is complete and may be worked in
    git_dir: str = ""
    # which directory the worktree is, whatever else may come to bear its name
    inode: int = 0
    # an earlier worktree was gone, with whatever had not been committed in it
    lost: bool = False
    # everything that Git can keep is on the branch: what lies here may be half removed
    is_kept: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether something may have been done in it that is not kept yet."""
        return bool(self.git_dir) and not self.is_kept

    def completed(self, git_dir: Path, tree: Path) -> State:
        """Return it with the worktree there."""
        return replace(self, git_dir=str(git_dir)).found(tree)

    def found(self, tree: Path) -> State:
        """Return it with that directory as the worktree."""
        return replace(self, inode=tree.lstat().st_ino)

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

    def take(self, generation: int) -> Claim:
        """Make the generation the one that works here. Older ones stop when they look.

        Raises:
            WorkspaceLost: a newer one works here.
            OSError: somebody else has put something there.
        """
        if self.base.is_symlink():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        holders.come(self.holder, generation)
        claim = Claim(self, generation)
        claim.require()
        for directory in (self.home, self.temporary, self.staging, self.running):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return claim

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

    def generation(self) -> int | None:
        """Return the generation that works here, None where none does."""
        return holders.newest(self.holder)

    def state(self) -> State | None:
        """Return what the newest generation that knows anything knows of the worktree, None
        where none does or somebody else has written there."""
        known = self._known_by()
        return _read(known[max(known)]) if known else None

    def forget(self) -> None:
        """Know nothing of the worktree any more."""
        for file in self._known_by().values():
            file.unlink(missing_ok=True)

    def _known_by(self) -> dict[int, Path]:
        """Return the file of each generation that has come to know something."""
        files = {file.name.removeprefix(_STATE): file for file in self.base.glob(f"{_STATE}*")}
        return {int(number): file for number, file in files.items() if number.isdecimal()}


@dataclass(frozen=True, slots=True)
class Claim:
    """One generation's leave to work in a place, which ends when a newer one comes."""

    place: Place
    generation: int

    def is_ours(self) -> bool:
        """Return whether it still holds."""
        return self.place.generation() == self.generation

    def require(self) -> None:
        """Return where it still holds.

        Raises:
            WorkspaceLost: another generation works here, or nothing is there.
        """
        if not self.is_ours():
            raise WorkspaceLost

    def remember(self, state: State) -> None:
        """Keep the state, over a loss of power too. Nobody who comes to that late takes it from
        a newer generation."""
        said = {"version": _VERSION, "state": asdict(state)}
        _replace(self.place.base / f"{_STATE}{self.generation}", json.dumps(said, indent=1))

    @contextmanager
    def putting_aside(self, path: Path) -> Iterator[Path]:
        """Give where what lay at the path lies now, to be removed. The path is free at once,
        however long that takes and whoever stands still meanwhile.

        Raises:
            WorkspaceLost: it was another's by then, and is back.
        """
        self.require()
        aside = self.place.base.with_name(f"{self.place.job_id}{_GONE}{uuid4().hex[:8]}")
        path.rename(aside)
        base = aside if path == self.place.base else self.place.base
        if holders.newest(base / self.place.holder.name) != self.generation:
            with suppress(OSError):
                aside.rename(path)
            raise WorkspaceLost
        yield aside


def _read(file: Path) -> State | None:
    try:
        said = json.loads(file.read_text())
        state = State(**said["state"]) if said["version"] == _VERSION else None
        return state and replace(state, left_out=tuple(state.left_out))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


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
