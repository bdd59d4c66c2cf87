"""Finding the repository a job works for, inside what its authority names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from recovery.errors import ErrorCode
from work.coding.errors import WorkspaceRefused
from work.coding.git import At, Git, GitFailed


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository, by Git's own directory that all its worktrees share.

    `top` is the directory of the person's files, None where there are none (bare). `prefix` is
    the job's directory relative to it.
    """

    common: Path
    top: Path | None
    prefix: str
    head: str

    @property
    def at(self) -> At:
        """Where commands that need no worktree work."""
        return At(self.common)


def find(git: Git, *, roots: Sequence[str], cwd: str) -> Repository:
    """Return the repository that `cwd` lies in.

    Everything is compared by real paths now, not as it was at admission: a directory that has
    become a link out of the roots is refused, and so is a repository that itself lies outside.

    Raises:
        WorkspaceRefused: `outside_roots`, `directory_missing`, `not_a_repository`, or
            `repository_empty`.
        GitFailed: Git did not come to an answer.
    """
    allowed = [Path(root) for root in roots if _is_itself(root)]
    here = Path(cwd).resolve()
    _require_inside(here, allowed, "The directory leads out of what jobs may work in.")
    if not here.is_dir():
        raise WorkspaceRefused(ErrorCode.DIRECTORY_MISSING, "The directory is not there.")
    try:
        # A repository above the roots is not looked for.
        said = {"GIT_CEILING_DIRECTORIES": os.pathsep.join(str(one.parent) for one in allowed)}
        answer = git(
            "rev-parse", "--path-format=absolute", "--is-bare-repository",
            "--is-inside-work-tree", "--git-common-dir",
            cwd=here, environment=said,
        )  # fmt: skip
    except GitFailed as failed:
        if failed.status is None:
            raise
        if "dubious ownership" in failed.said:
            raise _none("The repository belongs to another account of the machine.") from None
        raise _none("There is no repository here.") from None
    # The name comes last: it may hold a line's end itself.
    bare, inside, common = (
        answer.decode(errors="surrogateescape").removesuffix("\n").split("\n", 2)
    )
    if inside == "true":
        top = Path(git.line("rev-parse", "--show-toplevel", cwd=here)).resolve()
    elif bare == "true":
        top = None
    else:
        raise _none("The directory is Git's own.")
    shared = Path(common).resolve()
    outside = "The repository lies outside of what jobs may work in."
    for path in filter(None, (shared, top)):
        _require_inside(path, allowed, outside)
    head = _head(git, here)
    prefix = str(here.relative_to(top)) if top is not None else ""
    return Repository(shared, top, "" if prefix == "." else prefix, head)


def _head(git: Git, here: Path) -> str:
    try:
        return git.line("rev-parse", "--verify", "--quiet", "HEAD^{commit}", cwd=here)
    except GitFailed as failed:
        if failed.status is None:
            raise
        raise WorkspaceRefused(
            ErrorCode.REPOSITORY_EMPTY, "The repository has no commit yet."
        ) from None


def _is_itself(root: str) -> bool:
    """Return whether the root still is the directory that was named, not a link elsewhere."""
    return os.path.realpath(root) == root


def _require_inside(path: Path, allowed: Sequence[Path], reason: str) -> None:
    home = Path(settings.HOLDFAST_HOME).resolve()
    if not any(path.is_relative_to(root) for root in allowed) or path.is_relative_to(home):
        raise WorkspaceRefused(ErrorCode.OUTSIDE_ROOTS, reason)


def _none(reason: str) -> WorkspaceRefused:
    return WorkspaceRefused(ErrorCode.NOT_A_REPOSITORY, reason)
