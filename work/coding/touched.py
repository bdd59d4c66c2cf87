"""What a program changed outside the job's branch, found by looking before and after.

Where the kernel holds programs (`work.coding.sandbox`) they cannot reach the repository, and
only the worktree's own pointer to it needs a look. Where an operator lets them run unheld, the
repository is compared: refs, HEADs, configuration, hooks, indexes, and the files of its other
worktrees. What differs is put back. Nobody else should work in such a repository meanwhile:
their changes look the same. Of refs, what was found is kept under `refs/holdfast/touched/`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recovery.counting import counted
from work.coding import removal, worktrees
from work.coding.git import At, Git, GitFailed

_KEPT: Final = "refs/holdfast/touched"
# Of Git's own directory all is looked at but what only grows and what refs are read from.
_NOT_LOOKED_AT: Final = frozenset({"objects", "logs", "refs", "packed-refs", "lfs", "gc.log"})
_ALTERNATES: Final = "objects/info/alternates"
# The job's programs may bring the index of their own worktree up to date.
_OWN_MAY_CHANGE: Final = frozenset({"index", "ORIG_HEAD", "COMMIT_EDITMSG", "logs"})
_FILE_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _File:
    mode: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """What a repository held outside the job's branch."""

    refs: Mapping[str, str]
    files: Mapping[str, _File]
    # of each other worktree, what differed from its index
    changed: Mapping[At, Mapping[str, str]]


class Watch:
    """Looks at one repository on behalf of one job."""

    def __init__(self, git: Git, *, common: Path, own_git_dir: Path, branch: str) -> None:
        self._git = git
        self._at = At(common)
        self._own = own_git_dir
        self._own_ref = f"refs/heads/{branch}"

    def look(self) -> Seen:
        """Return what is there now."""
        return Seen(
            refs=self._refs(),
            files=dict(self._files()),
            changed={at: self._changed(at) for at in self._other_trees()},
        )

    def put_back(self, before: Seen) -> list[str]:
        """Return what differs from before, as a person knows it; it is as before now, except
        for files that already had changes of their own."""
        return [
            *self._put_back_files(before.files),
            *self._put_back_refs(before.refs),
            *self._put_back_trees(before.changed),
        ]

    def _refs(self) -> dict[str, str]:
        answer = self._git(
            "for-each-ref", "--format=%(refname) %(objectname)", at=self._at
        ).decode(errors="surrogateescape")
        refs = dict(line.split(" ", 1) for line in answer.splitlines())
        return {
            name: commit
            for name, commit in refs.items()
            if name != self._own_ref and not name.startswith(_KEPT)
        }

    def _files(self) -> Iterator[tuple[str, _File]]:
        common = self._at.git_dir
        for here, directories, names in os.walk(common):
            if Path(here) == common:
                directories[:] = [one for one in directories if one not in _NOT_LOOKED_AT]
            if Path(here) == self._own:
                directories.clear()
            for name in names:
                if Path(here) == self._own and name in _OWN_MAY_CHANGE:
                    continue
                path = os.path.relpath(os.path.join(here, name), common)  # noqa: PTH118
                if path not in _NOT_LOOKED_AT and (found := self._file(path)):
                    yield path, found
        if found := self._file(_ALTERNATES):
            yield _ALTERNATES, found

    def _file(self, path: str) -> _File | None:
        whole = self._at.git_dir / path
        with suppress(OSError):
            known = whole.lstat()
            if stat.S_ISLNK(known.st_mode):
                return _File(known.st_mode, os.fsencode(whole.readlink()))
            if stat.S_ISREG(known.st_mode) and known.st_size <= _FILE_MAX_BYTES:
                return _File(known.st_mode, whole.read_bytes())
        return None

    def _put_back_files(self, before: Mapping[str, _File]) -> Iterator[str]:
        now = dict(self._files())
        for path in sorted({*before, *now}):
            wanted, found = before.get(path), now.get(path)
            if wanted == found:
                continue
            whole = self._at.git_dir / path
            if whole.is_dir() and not whole.is_symlink():
                removal.remove(whole)
            whole.unlink(missing_ok=True)
            if wanted is not None:
                whole.parent.mkdir(parents=True, exist_ok=True)
                if stat.S_ISLNK(wanted.mode):
                    whole.symlink_to(os.fsdecode(wanted.data))
                else:
                    whole.write_bytes(wanted.data)
                    whole.chmod(stat.S_IMODE(wanted.mode))
            yield path

    def _put_back_refs(self, before: Mapping[str, str]) -> Iterator[str]:
        now = self._refs()
        for name in sorted({*before, *now}):
            wanted, found = before.get(name), now.get(name)
            if wanted == found:
                continue
            if found is not None:
                kept = f"{_KEPT}/{found[:12]}/{name.removeprefix('refs/')}"
                self._git("update-ref", kept, found, at=self._at)
            if wanted is not None:
                self._git("update-ref", name, wanted, at=self._at)
            else:
                self._git("update-ref", "-d", name, at=self._at)
            yield name

    def _other_trees(self) -> Iterator[At]:
        common = self._at.git_dir
        if common.name == ".git":
            yield At(common, common.parent)
        with suppress(FileNotFoundError):
            for git_dir in sorted((common / "worktrees").iterdir()):
                tree = worktrees.tree_of(git_dir)
                if git_dir != self._own and tree is not None and tree.is_dir():
                    yield At(git_dir, tree)

    def _changed(self, at: At) -> dict[str, str]:
        if at.work_tree is None:
            return {}
        tree = at.work_tree
        try:
            names = self._git.names(
                "diff-files", "--name-only", "--ignore-submodules=all", "-z",
                at=at, cwd=tree, filtering=True,
            )  # fmt: skip
            names += self._git.names(
                "ls-files", "--others", "--exclude-standard", "-z", at=at, cwd=tree
            )
        except GitFailed:
            return {}
        return {name: _digest(tree / name) for name in names}

    def _put_back_trees(self, before: Mapping[At, Mapping[str, str]]) -> Iterator[str]:
        for at, was_changed in before.items():
            is_changed, tree = self._changed(at), at.work_tree or Path("/")
            git = self._git.also_writing(tree)
            for name in sorted({*was_changed, *is_changed}):
                if was_changed.get(name) == is_changed.get(name):
                    continue
                if name not in was_changed:
                    with suppress(GitFailed):  # a new file, which is not in the index
                        git("checkout-index", "--force", "--", name,
                            at=at, cwd=tree, filtering=True)  # fmt: skip
                yield name


def _digest(path: Path) -> str:
    with suppress(OSError):
        if path.is_symlink():
            return f"link to {path.readlink()}"
        if path.is_file() and path.stat().st_size <= _FILE_MAX_BYTES:
            return hashlib.sha256(path.read_bytes()).hexdigest()
        return counted(path.stat().st_size, "byte")
    return "not there"
