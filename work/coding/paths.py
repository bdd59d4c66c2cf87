"""The files of a job's worktree, and nothing else, for tools."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from recovery.errors import ErrorCode
from turns.tools.registry import State, ToolFailed
from work.coding import nofollow
from work.coding.nofollow import OutOfBounds, Why

_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PERMISSIONS: Final = 0o777
_NEW_FILE: Final = 0o644
_EXECUTABLE: Final = 0o111


class Kind(StrEnum):
    """What an entry of a directory is."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    REPOSITORY = "repository"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory."""

    name: str
    kind: Kind
    size: int


class Tree:
    """The files below one directory. Every path is relative to it, and leads through no link.

    What is refused is raised as a refused tool call, so that the step's row records it.
    `submodules` are the directories in which Git keeps other repositories. `staging` is a
    directory beside it, in which a file is written before it takes its place.
    """

    def __init__(
        self, root: Path, *, staging: Path, submodules: Collection[str] = frozenset()
    ) -> None:
        self._root = root
        self._staging = staging
        self._submodules = frozenset(submodules)

    def names(self, path: str) -> tuple[str, ...]:
        """Return the components of a path that may be opened.

        Raises:
            ToolFailed: refused.
        """
        with _told():
            names = nofollow.components(path)
            for length in range(1, len(names) + 1):
                if "/".join(names[:length]) in self._submodules:
                    raise OutOfBounds(Why.NESTED)
        return names

    def below(self, path: str, *, may_be_gone: bool = False) -> str:
        """Return the path as Git writes it, of a file or directory that may be looked into.

        Raises:
            ToolFailed: refused, or nothing is there and that is not what `may_be_gone` allows.
        """
        names = self.names(path)
        gone = (FileNotFoundError, NotADirectoryError) if may_be_gone else ()
        with _told(), contextlib.suppress(*gone), self._directory(names[:-1]) as parent:
            for name in names[-1:]:
                _require_plain(name, parent)
        return "/".join(names)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[BinaryIO]:
        """Give the file at `path`, open for reading.

        Raises:
            ToolFailed: refused, or no file is there.
        """
        names = self._file_names(path)
        with _told(), self._parent(names) as parent:
            descriptor = nofollow.open_file(names[-1], parent)
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def entries(self, path: str) -> list[Entry]:
        """Return what lies in the directory, by name, without what is Git's own.

        Raises:
            ToolFailed: refused, or no directory is there.
        """
        names = self.names(path)
        with _told(), self._directory(names) as here, os.scandir(here) as found:
            return sorted(
                (_entry(one, here) for one in found if not nofollow.is_gits(one.name)),
                key=lambda entry: entry.name,
            )

    def write(
        self,
        path: str,
        data: bytes,
        *,
        executable: bool | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> bool:
        """Make `data` the whole of the file, in one step; return whether the file is new.

        The old file or the new one is there at any instant, even if this process is killed.
        Its permissions stay unless `executable` says otherwise. `before` is called at the last
        moment at which nothing has happened.

        Raises:
            ToolFailed: refused, or a directory is there.
        """
        names = self._file_names(path)
        with _told(), self._parent(names, create=True) as parent:
            known = nofollow.ordinary(names[-1], parent)
            mode = stat.S_IMODE(known.st_mode) & _PERMISSIONS if known else _NEW_FILE
            if executable is not None:
                mode = mode | _EXECUTABLE if executable else mode & ~_EXECUTABLE
            written = self._staged(data, mode)
            try:
                before()
                os.rename(written, names[-1], dst_dir_fd=parent)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
            os.fsync(parent)
            return known is None

    def delete(self, path: str, *, before: Callable[[], None] = lambda: None) -> None:
        """Remove the file; a link is removed itself.

        Raises:
            ToolFailed: refused, or no file is there.
        """
        names = self._file_names(path)
        with _told(), self._parent(names) as parent:
            before()
            os.unlink(names[-1], dir_fd=parent)
            os.fsync(parent)

    def _staged(self, data: bytes, mode: int) -> Path:
        written = self._staging / uuid4().hex
        descriptor = os.open(written, _NEW_FILE_FLAGS, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        return written

    def _file_names(self, path: str) -> tuple[str, ...]:
        names = self.names(path)
        if not names or path.endswith("/"):
            raise _missing("That is a directory.")
        return names

    @contextlib.contextmanager
    def _parent(self, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        with self._directory(names[:-1], create=create) as parent:
            yield parent

    @contextlib.contextmanager
    def _directory(self, names: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with nofollow.directory(root, names, create=create) as here:
                yield here
        finally:
            os.close(root)


def _require_plain(name: str, parent: int) -> None:
    """Return where the name is of an ordinary file, or of a directory of this repository."""
    try:
        if nofollow.ordinary(name, parent) is None:
            raise FileNotFoundError(name)
    except IsADirectoryError:
        with nofollow.directory(parent, [name]):
            pass


def _entry(found: os.DirEntry[str], here: int) -> Entry:
    known = os.stat(found.name, dir_fd=here, follow_symlinks=False)
    if stat.S_ISLNK(known.st_mode):
        return Entry(found.name, Kind.LINK, 0)
    if stat.S_ISREG(known.st_mode):
        return Entry(found.name, Kind.FILE, known.st_size)
    if not stat.S_ISDIR(known.st_mode):
        return Entry(found.name, Kind.OTHER, 0)
    try:
        os.stat(f"{found.name}/.git", dir_fd=here, follow_symlinks=False)
    except OSError:
        return Entry(found.name, Kind.DIRECTORY, 0)
    return Entry(found.name, Kind.REPOSITORY, 0)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn what went wrong into what the model is told."""
    try:
        yield
    except OutOfBounds as refused:
        raise ToolFailed(
            ErrorCode.PATH_REFUSED,
            state=State.REFUSED,
            result=f"The path is refused: {refused.why.value}.",
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise _missing("There is no such file or directory.") from None
    except IsADirectoryError:
        raise _missing("That is a directory.") from None
    except PermissionError:
        raise ToolFailed(
            ErrorCode.TOOL_FAILED, result="The permissions of the file do not allow this."
        ) from None
    except OSError as error:
        raise ToolFailed(
            ErrorCode.TOOL_FAILED, result=f"It did not work: {os.strerror(error.errno or 0)}."
        ) from None


def _missing(said: str) -> ToolFailed:
    return ToolFailed(ErrorCode.NOT_FOUND, result=said)
