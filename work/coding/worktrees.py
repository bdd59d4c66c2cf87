"""A worktree from its making to its removal, at every instant of which the worker may die.

What is half made is known by its state, which names Git's directory for the worktree only once
everything is in place; nothing was worked on before that, so it is removed and made again. What
is complete is gone on with, whatever lies in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.counting import counted
from recovery.errors import ErrorCode
from recovery.probes import reach
from work.coding import bounds
from work.coding.changes import JobBranch
from work.coding.errors import WorkspaceRefused
from work.coding.git import At, Git, GitFailed, shown
from work.coding.places import Claim, Place, State
from work.coding.removal import empty, give_back, make_accessible, remove

_FOLDER: Final = "holdfast"
BRANCH: Final = f"{_FOLDER}/job-{{job_id}}"
# Git makes no branch below another: this is the name where a person's is called `holdfast`.
BRANCH_BESIDE: Final = f"{_FOLDER}-job-{{job_id}}"
_NAMES_TRIED: Final = 100
_LEFT_OUT_NAMED: Final = 5
# A report has room for that many of the longest names.
_NAME_MAX_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class Facts:
    """What a job left behind: all empty where it changed nothing.

    `kept` says that the last commit is ours, of what the job had not committed; `left_out` what
    Git could not keep of it; `lost` that a worktree was gone, with whatever was not committed
    in it. `stays_at` is where the worktree still lies, because it could not be taken down.
    """

    branch: str = ""
    commit: str = ""
    changed_files: int = 0
    kept: bool = False
    left_out: tuple[str, ...] = ()
    lost: bool = False
    stays_at: str = ""

    @property
    def sentence(self) -> str:
        """What a report says of it."""
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        if self.commit:
            files = counted(self.changed_files, "file")
            at = f"branch {self.branch} at commit {self.commit}"
            yield f"The work is on {at}: {files} changed."
        elif not (self.lost or self.stays_at):
            yield "Nothing was changed in the repository."
        if self.kept:
            yield "That commit was made at the end, of what the job had not committed."
        if self.left_out:
            named = ", ".join(map(_named, self.left_out[:_LEFT_OUT_NAMED]))
            more = len(self.left_out) - _LEFT_OUT_NAMED
            others = f" and {more} more" if more > 0 else ""
            yield f"Git cannot keep {named}{others}: gone with the working copy."
        if self.lost:
            yield (
                "The working copy was gone before the job was done: what was not committed by "
                "then is lost."
            )
        if self.stays_at:
            yield (
                "What was not committed could not be put on the branch: it stays on the "
                f"worker's machine, in {self.stays_at} of its data directory."
            )


def _named(path: str) -> str:
    """Return the path as one line, the end of a long one."""
    text = shown(path)
    return text if len(text) <= _NAME_MAX_CHARS else f"…{text[-_NAME_MAX_CHARS:]}"


def free_branch(git: Git, at: At, job_id: int) -> str:
    """Return a name for the job's branch that Git can make, with a number where it is taken:
    by a branch, another installation's perhaps, or by one below it.

    Raises:
        WorkspaceRefused: there are too many.
    """
    has_folder = git.commit_of(f"refs/heads/{_FOLDER}", at=at) is None
    name = (BRANCH if has_folder else BRANCH_BESIDE).format(job_id=job_id)
    for candidate in (name, *(f"{name}-{number}" for number in range(2, _NAMES_TRIED))):
        if not _is_taken(git, at, candidate):
            return candidate
    raise WorkspaceRefused(ErrorCode.WORKSPACE_FAILED, "Too many branches have the job's name.")


def _is_taken(git: Git, at: At, branch: str) -> bool:
    """Return whether the branch is there, or one below it."""
    # The pattern is matched whole or up to a slash, so `job-1` does not find `job-12`.
    return bool(git("for-each-ref", "--count=1", f"refs/heads/{branch}", at=at))


def make(git: Git, claim: Claim, state: State) -> State:
    """Make the branch and its worktree; return the state of the complete one.

    A branch that is there keeps its commits. What is left of an earlier try is removed. Whoever
    was overtaken stops before its next step.

    Raises:
        GitFailed, WorkspaceLost: it is not complete.
    """
    place, common = claim.place, At(Path(state.repository))
    claim.require()
    claim.remember(state)
    remove_tree(git, claim, common)
    reach("workspace.begun")
    branch = f"refs/heads/{state.branch}"
    if git.commit_of(branch, at=common) is None:
        nothing = "0" * len(state.base_commit)
        git("update-ref", branch, state.base_commit, nothing, at=common)
    reach("workspace.branch_made")
    # By commit and not by name: a tag of the same name must not be taken for the branch.
    git(
        "worktree", "add", "--detach", "--no-checkout", str(place.tree), state.base_commit,
        at=common, cwd=place.base, sparsely=True,
    )  # fmt: skip
    reach("workspace.worktree_made")
    at = At(_git_dir_named_in(place.tree), place.tree)
    git("symbolic-ref", "HEAD", branch, at=at)
    git(
        "read-tree", "-u", "--reset", branch,
        at=at, cwd=place.tree, seconds=bounds.GIT_CHECKOUT_SECONDS, filtering=True,
        sparsely=True,
    )  # fmt: skip
    reach("workspace.checked_out")
    claim.require()
    mend_pointer(place, at.git_dir)
    completed = state.completed(at.git_dir, place.tree)
    claim.remember(completed)
    reach("workspace.complete")
    return completed


def is_there(place: Place, state: State) -> bool:
    """Return whether the worktree is there: neither a link nor another directory of its name.
    A copy of it, on another disk, may be."""
    try:
        found = place.tree.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return False
        return found.st_ino == state.inode or _points_to(place, Path(state.git_dir))
    except OSError:
        return False


def is_whole(place: Place, state: State) -> bool:
    """Return whether the complete worktree is still there to go on with."""
    if not state.is_complete or not is_there(place, state):
        return False
    git_dir = Path(state.git_dir)
    return (git_dir / "HEAD").is_file() and tree_of(git_dir) == place.tree


def is_adrift(place: Place, state: State | None) -> bool:
    """Return whether somebody removed what Git or we knew of the worktree, but not the
    worktree, or put something else there: it cannot be committed, and is not thrown away."""
    if not os.path.lexists(place.tree):
        return False
    return state is None or (state.is_complete and not is_whole(place, state))


def require_known(place: Place, state: State | None) -> None:
    """Return where nothing is adrift.

    Raises:
        GitFailed: it is, and stays.
    """
    if is_adrift(place, state):
        raise GitFailed("worktree", None, "nothing is known of it any more")


def take_over(git: Git, claim: Claim, state: State) -> None:
    """Put the complete worktree of a dead worker in order: its locks go, its files stay.

    Raises:
        GitFailed, WorkspaceLost: it is not in order.
    """
    place = claim.place
    git_dir, branch = Path(state.git_dir), f"refs/heads/{state.branch}"
    # what the dead one may still come to remember does not count from here on
    claim.require()
    claim.remember(state.found(place.tree))
    _unlock(state)
    mend_pointer(place, git_dir)
    empty(place.staging)
    at = At(git_dir, place.tree)
    _mend_branch(git, at, state)
    git("symbolic-ref", "HEAD", branch, at=at)
    if not (git_dir / "index").is_file():
        git("read-tree", branch, at=at)


def _unlock(state: State) -> None:
    """Remove the locks of a Git that was killed in the worktree, on what is the job's own."""
    git_dir = Path(state.git_dir)
    for lock in (
        git_dir / "index.lock",
        git_dir / "HEAD.lock",
        Path(state.repository) / f"refs/heads/{state.branch}.lock",
    ):
        lock.unlink(missing_ok=True)


def _mend_branch(git: Git, at: At, state: State) -> None:
    """Make the job's branch anew where somebody has removed it; the files are still there."""
    branch = f"refs/heads/{state.branch}"
    if git.commit_of(branch, at=at) is None:
        git("update-ref", branch, state.base_commit, at=at)


def mend_pointer(place: Place, git_dir: Path) -> bool:
    """Make the worktree's `.git` name Git's directory again; return whether it did not."""
    if _points_to(place, git_dir):
        return False
    pointer = place.tree / ".git"
    if pointer.is_dir() and not pointer.is_symlink():
        remove(pointer)
    else:
        pointer.unlink(missing_ok=True)
    pointer.write_bytes(_pointer_to(git_dir))
    return True


def _points_to(place: Place, git_dir: Path) -> bool:
    pointer, wanted = place.tree / ".git", _pointer_to(git_dir)
    with suppress(OSError):
        known = pointer.lstat()
        return (
            stat.S_ISREG(known.st_mode)
            and known.st_nlink == 1
            and known.st_size == len(wanted)
            and pointer.read_bytes() == wanted
        )
    return False


def _pointer_to(git_dir: Path) -> bytes:
    return os.fsencode(f"gitdir: {git_dir}\n")


def take_down(git: Git, claim: Claim, state: State, *, message: str) -> Facts:
    """Keep what is not committed on the branch, and remove the worktree; return what is left.

    A branch on which nothing happened is removed. What is done up to its death by one worker is
    not done again by the next, and no half removed worktree is taken for the work.

    Raises:
        GitFailed, WorkspaceLost: it is not removed, and nothing is lost.
    """
    common = At(Path(state.repository))
    state = _keep(git, claim, state, message=message)
    reach("workspace.kept")
    remove_tree(git, claim, common)
    reach("workspace.removed")
    branch = f"refs/heads/{state.branch}"
    tip = git.commit_of(branch, at=common)
    if tip is None or tip == state.base_commit:
        if tip is not None:
            git("update-ref", "-d", branch, tip, at=common)
        return Facts(left_out=state.left_out, lost=state.lost)
    changed = git.names(
        "diff-tree", "-r", "--name-only", "--no-renames", "-z", state.base_commit, tip,
        at=common,
    )  # fmt: skip
    # told by the commit itself, which may be that of a worker that died right after it
    kept = git.line("log", "-1", "--format=%s", tip, at=common) == message
    return Facts(
        state.branch, tip, len(changed), kept=kept, left_out=state.left_out, lost=state.lost
    )


def _keep(git: Git, claim: Claim, state: State, *, message: str) -> State:
    """Commit what is not committed; return the state that says so, and has been stored."""
    if not state.is_complete:
        return state
    place = claim.place
    require_known(place, state)
    claim.require()
    _unlock(state)
    left_out = set(state.left_out)
    is_there = is_whole(place, state)
    if is_there:
        make_accessible(place.tree)
        _mend_branch(git, At(Path(state.git_dir), place.tree), state)
        done = _branch(git, place, state).commit(message, before=claim.require)
        left_out.update(done.left_out)
    kept = state.kept(left_out=sorted(left_out), lost=state.lost or not is_there)
    claim.require()
    claim.remember(kept)
    return kept


def _branch(git: Git, place: Place, state: State) -> JobBranch:
    return JobBranch(
        git,
        place,
        git_dir=Path(state.git_dir),
        branch=state.branch,
        base_commit=state.base_commit,
    )


def remove_tree(git: Git, claim: Claim, common: At) -> None:
    """Remove the worktree and what Git knows of it, however far either had come."""
    tree = claim.place.tree
    if os.path.lexists(tree):
        _clear(claim, tree)
    for git_dir in _git_dirs_of(common.git_dir, tree):
        claim.require()
        # Never `prune`: it would take the person's own worktrees that are not mounted now.
        (git_dir / "locked").unlink(missing_ok=True)
        try:
            git("worktree", "remove", "--force", "--force", str(tree), at=common)
        except GitFailed:
            claim.require()
            remove(git_dir)


def remove_place(claim: Claim) -> None:
    """Remove all that the job has on this machine.

    Raises:
        WorkspaceLost: another claim works there. Nothing was touched.
    """
    _clear(claim, claim.place.base)


def _clear(claim: Claim, directory: Path) -> None:
    give_back(directory)
    with claim.putting_aside(directory) as aside:
        remove(aside)


def _git_dirs_of(common: Path, tree: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError):
        for git_dir in sorted((common / "worktrees").iterdir()):
            if tree_of(git_dir) == tree:
                yield git_dir


def tree_of(git_dir: Path) -> Path | None:
    """Return which worktree Git's directory says it belongs to."""
    try:
        said = (git_dir / "gitdir").read_text(errors="surrogateescape").rstrip("\n")
    except OSError:
        return None
    return (git_dir / said).parent


def _git_dir_named_in(tree: Path) -> Path:
    said = (tree / ".git").read_text(errors="surrogateescape").rstrip("\n")
    return (tree / said.removeprefix("gitdir: ")).resolve()
