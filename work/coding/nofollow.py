"""Opening files below a directory without ever following a link.

A path is opened one component at a time, each relative to the directory opened before and with
O_NOFOLLOW: what a component is, is decided when it is opened, so exchanging it for a link in
between leads nowhere. Nothing of Git's own is opened either.

The standard library only: the search runs it in a process of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# NONBLOCK: a fifo without a writer would hold us
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_COMPONENT_MAX_BYTES: Final = 255
# What some file system takes for `.git`: other cases, code points that HFS+ ignores, trailing
# dots and spaces, streams and short names of NTFS. The branch may be checked out there one day.
_IGNORED_BY_HFS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_GITS_NAME: Final = re.compile(r"(\.git|git~[0-9]+)[ .]*(:.*)?", re.IGNORECASE | re.DOTALL)


class Why(StrEnum):
    """Why a path is not opened."""

    ABSOLUTE = "it is absolute"
    PARENT = "it goes up with `..`"
    NAME = "it is no name that a file can have"
    GIT = "it is Git's own"
    LINK = "it leads through a symbolic link"
    NESTED = "it lies in another repository"
    SPECIAL = "it is not an ordinary file"
    HARD_LINK = "the file has another name, perhaps outside"


class OutOfBounds(Exception):
    """The path leads out of the directory, or to something that is not the job's."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why


def components(path: str) -> tuple[str, ...]:
    """Return the names that a path is made of; none for the directory itself.

    Raises:
        OutOfBounds: it is absolute, goes up, or names something of Git's.
    """
    if path.startswith("/"):
        raise OutOfBounds(Why.ABSOLUTE)
    names = tuple(name for name in path.split("/") if name not in {"", "."})
    for name in names:
        _require_plain(name)
    return names


def _require_plain(name: str) -> None:
    if name == "..":
        raise OutOfBounds(Why.PARENT)
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise OutOfBounds(Why.NAME) from None
    if "\0" in name or len(encoded) > _COMPONENT_MAX_BYTES:
        raise OutOfBounds(Why.NAME)
    if is_gits(name):
        raise OutOfBounds(Why.GIT)


def is_gits(name: str) -> bool:
    """Return whether some file system takes the name for `.git`."""
    return bool(_GITS_NAME.fullmatch(_IGNORED_BY_HFS.sub("", name)))


@contextmanager
def directory(root: int, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Give a descriptor of the directory that the names lead to below `root`.

    Raises:
        OutOfBounds: a component is a link, or another repository begins there.
        FileNotFoundError, NotADirectoryError: it is not there.
    """
    current = os.dup(root)
    try:
        for name in names:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            below = _open_directory(name, current)
            os.close(current)
            current = below
            if _is_there(".git", current):
                raise OutOfBounds(Why.NESTED)
        yield current
    finally:
        os.close(current)


def _open_directory(name: str, parent: int) -> int:
    try:
        return os.open(name, _DIRECTORY_FLAGS, dir_fd=parent)
    except NotADirectoryError:  # a link too, since it is not followed
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OutOfBounds(Why.LINK) from None
        raise


def _is_there(name: str, parent: int) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def ordinary(name: str, parent: int) -> os.stat_result | None:
    """Return what is known of the file without opening it, None where there is none.

    Raises:
        OutOfBounds: it is a link, has other names, or is neither file nor directory.
        IsADirectoryError: it is a directory.
    """
    try:
        known = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _require_ordinary(known)
    return known


def open_file(name: str, parent: int) -> int:
    """Return a descriptor for reading the file.

    Raises:
        OutOfBounds: it is a link, has other names, or is not a file.
        FileNotFoundError, IsADirectoryError: no file is there.
    """
    # Looked at first: opening a device may already do something.
    if ordinary(name, parent) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        descriptor = os.open(name, _FILE_FLAGS, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OutOfBounds(Why.LINK) from None
        raise
    try:
        _require_ordinary(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _require_ordinary(known: os.stat_result) -> None:
    if stat.S_ISLNK(known.st_mode):
        raise OutOfBounds(Why.LINK)
    if stat.S_ISDIR(known.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(known.st_mode):
        raise OutOfBounds(Why.SPECIAL)
    if known.st_nlink > 1:
        raise OutOfBounds(Why.HARD_LINK)
