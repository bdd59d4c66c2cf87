"""The job's branch: what has changed, keeping it as commits, and counting it.

Commits are put together from plumbing (`write-tree`, `commit-tree`, `update-ref`), which runs
no hook, asks nothing and moves the branch by compare-and-set. Asked again after a crash, the
tree is the branch's already and no second commit is made.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from uuid import uuid4

from work.coding import bounds, nofollow
from work.coding.git import At, Git, GitFailed, decoded
from work.coding.places import Place

_SUBMODULE_MODE: Final = "160000"
_NAMES_AT_ONCE: Final = 100
# What Git says where a file alone is to blame, and neither the disk nor a lock.
_OF_THE_FILE: Final = re.compile(
    r'open\(".*"\): Permission denied|invalid path|failed to encode|BOM is |'
    r"working-tree-encoding",
    re.DOTALL,
)
# Of this many refusals halving finds more than a dozen files. Then it is not the files.
_FAILURES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Commit:
    """The newest commit of the branch. `files` names what this call added to it, if anything;
    `left_out` what cannot be kept: other repositories, devices, what Git refuses."""

    id: str
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class JobBranch:
    """The branch of one job, and the worktree that stands on it."""

    def __init__(
        self, git: Git, place: Place, *, git_dir: Path, branch: str, base_commit: str
    ) -> None:
        self._git = git
        self._place = place
        self._at = At(git_dir, place.tree)
        self._ref = f"refs/heads/{branch}"
        self._base = base_commit

    @cached_property
    def submodules(self) -> frozenset[str]:
        """The directories in which other repositories belong; a job does not change which."""
        entries = self._git.names("ls-files", "--stage", "-z", at=self._at)
        return frozenset(
            entry.partition("\t")[2] for entry in entries if entry.startswith(_SUBMODULE_MODE)
        )

    def tip(self) -> str:
        """Return the newest commit of the branch."""
        return self._git.commit_of(self._ref, at=self._at) or self._base

    def changed_files(self) -> list[str]:
        """Return the files in which the branch differs from where it began."""
        return self._named_between(self._base, self.tip())

    def commit(self, message: str, *, before: Callable[[], None]) -> Commit:
        """Return the commit that holds everything in the worktree now, made if need be.

        `before` is called at the last moment at which nothing has happened.

        Raises:
            GitFailed: nothing was committed.
        """
        left_out = self._stage()
        tree = self._git.line("write-tree", at=self._at)
        tip, has = self._git.line(
            "rev-parse", self._ref, f"{self._ref}^{{tree}}", at=self._at
        ).split("\n")
        if tree == has:
            return Commit(tip, left_out=left_out)
        said = self._place.staging / uuid4().hex
        said.write_text(message)
        try:
            commit = self._git.line(
                "commit-tree", "--no-gpg-sign", "-p", tip, "-F", str(said), tree, at=self._at
            )
        finally:
            said.unlink()
        before()
        self._git("update-ref", "-m", "commit: by a job", self._ref, commit, tip, at=self._at)
        return Commit(commit, tuple(self._named_between(tip, commit)), left_out)

    def difference(self, *, since_start: bool, path: str) -> tuple[str, bool]:
        """Return the worktree's changes since the job began, or since its last commit, and
        whether they were cut.

        The worktree's own index is left as it is.
        """
        since = self._base if since_start else self.tip()
        only = [f":(top,literal){path}"] if path else []
        with self._private_index() as environment:
            self._stage(environment)
            answer = self._git(
                "diff", "--cached", "--stat", "--patch", "--no-color", "--no-ext-diff",
                "--no-textconv", "--ignore-submodules=all", since, "--", *only,
                at=self._at, cwd=self._place.tree, environment=environment, filtering=True,
                cut_bytes=bounds.DIFF_MAX_BYTES + 1,
            )  # fmt: skip
        text = answer[: bounds.DIFF_MAX_BYTES].decode(errors="replace")
        return text, len(answer) > bounds.DIFF_MAX_BYTES

    def files(self) -> list[str]:
        """Return every file that Git keeps or would keep, in order: not those it is told to
        ignore."""
        names = self._git.names(
            "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "-z",
            at=self._at, cwd=self._place.tree,
        )  # fmt: skip
        return sorted(names)

    def _named_between(self, old: str, new: str) -> list[str]:
        return self._git.names(
            "diff-tree", "-r", "--name-only", "--no-renames", "-z", old, new, at=self._at
        )

    def _stage(self, environment: dict[str, str] | None = None) -> tuple[str, ...]:
        """Bring the index in line with the worktree; return what was left out of it."""
        environment = environment or {}
        left_out = {*_unkeepable(self._place.tree), *self.submodules}
        self._see_what_is_there(environment)
        try:
            self._add(["."], left_out, environment)
        except GitFailed as failed:
            if failed.status is None:
                raise
            # One file that cannot be read, or that Git does not take, must not keep the others
            # out.
            left_out.update(self._add_what_can_be(left_out, environment))
            self._add(["."], left_out, environment)
        return tuple(sorted(decoded(one) for one in left_out - self.submodules))

    def _see_what_is_there(self, environment: dict[str, str]) -> None:
        """Let Git look at every file that is there, in a sparse checkout as well."""
        if not (self._at.git_dir / "info" / "sparse-checkout").is_file():
            return
        entries = self._git.names("ls-files", "-t", "-z", at=self._at)
        passed_over = (entry[2:] for entry in entries if entry.startswith("S "))
        there = [name for name in passed_over if os.path.lexists(self._place.tree / name)]
        for first in range(0, len(there), _NAMES_AT_ONCE):
            names = there[first : first + _NAMES_AT_ONCE]
            self._git(
                "update-index", "--no-skip-worktree", "--", *names,
                at=self._at, cwd=self._place.tree, environment=environment,
            )  # fmt: skip

    def _add(
        self,
        paths: Sequence[str],
        left_out: Collection[str],
        environment: dict[str, str],
    ) -> None:
        said = self._place.staging / uuid4().hex
        without = (os.fsencode(f":(top,exclude,literal){one}") for one in left_out)
        said.write_bytes(b"\0".join([*map(os.fsencode, paths), *without]))
        try:
            self._git(
                "add", "--all", f"--pathspec-from-file={said}", "--pathspec-file-nul",
                at=self._at, cwd=self._place.tree, environment=environment,
                seconds=bounds.GIT_STAGE_SECONDS, filtering=True,
            )  # fmt: skip
        finally:
            said.unlink()

    def _add_what_can_be(
        self, left_out: Collection[str], environment: dict[str, str]
    ) -> list[str]:
        """Add all files but those that Git refuses, and return these: halving finds them.

        Raises:
            GitFailed: it is not the files. What was not added is not to be given up.
        """
        refused: list[str] = []
        failures = 0
        waiting = [self._not_in_the_index(left_out, environment)]
        while waiting:
            names = waiting.pop()
            try:
                if names:
                    self._add([f":(top,literal){n}" for n in names], left_out, environment)
            except GitFailed as failed:
                failures += 1
                if failed.status is None or failures > _FAILURES_MAX:
                    raise
                half = len(names) // 2
                if half:
                    waiting += [names[:half], names[half:]]
                elif _OF_THE_FILE.search(failed.said):
                    refused += names
                else:
                    raise
        return refused

    def _not_in_the_index(
        self, left_out: Collection[str], environment: dict[str, str]
    ) -> list[str]:
        """Return what has changed in the worktree and is not to be left out, in order."""
        names = self._git.names(
            "ls-files", "--modified", "--deleted", "--others", "--exclude-standard",
            "--deduplicate", "-z",
            at=self._at, cwd=self._place.tree, environment=environment, filtering=True,
        )  # fmt: skip
        below = tuple(f"{path}/" for path in left_out)
        return sorted(name for name in names if not f"{name}/".startswith(below))

    @contextmanager
    def _private_index(self) -> Iterator[dict[str, str]]:
        index = self._place.staging / uuid4().hex
        shutil.copyfile(self._at.git_dir / "index", index)
        try:
            yield {"GIT_INDEX_FILE": str(index)}
        finally:
            index.unlink(missing_ok=True)


def _unkeepable(tree: Path) -> Iterator[str]:
    """Yield what lies in the tree and is not to be handed to Git.

    Asked to add another repository, Git would look into that one's configuration, which a job's
    program can have written.
    """
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            found = list(os.scandir(tree / below))
        except OSError:
            continue
        if below and any(entry.name == ".git" for entry in found):
            yield below
            continue
        for entry in found:
            path = f"{below}/{entry.name}" if below else entry.name
            if path == ".git":
                continue
            mode = entry.stat(follow_symlinks=False).st_mode
            if nofollow.is_gits(entry.name):
                yield path
            elif stat.S_ISDIR(mode):
                waiting.append(path)
            elif not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                yield path
