"""Removing directories, whatever a program has done to their permissions."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

OWNERS_ALL: Final = 0o700


def empty(directory: Path) -> None:
    """Remove what lies in the directory."""
    for found in directory.iterdir():
        if found.is_dir() and not found.is_symlink():
            remove(found)
        else:
            found.unlink(missing_ok=True)


def remove(directory: Path) -> None:
    """Remove the directory with all in it, closed ones too. Links are not followed."""
    if directory.is_symlink() or not directory.is_dir():
        directory.unlink(missing_ok=True)
        return
    make_accessible(directory)
    shutil.rmtree(directory, onerror=_unless_gone)


def _unless_gone(_function: object, _path: str, raised: tuple[Any, BaseException, Any]) -> None:
    """Go on where somebody else removes the same."""
    if not isinstance(raised[1], FileNotFoundError):
        raise raised[1]


def make_accessible(directory: Path) -> None:
    """Give its owner back what a program took away: directories to enter, files to read."""
    give_back(directory)
    for here, directories, files in os.walk(directory):
        for name in directories:
            give_back(Path(here, name))
        for name in files:
            give_back(Path(here, name), stat.S_IRUSR | stat.S_IWUSR)


def give_back(path: Path, wanted: int = OWNERS_ALL) -> None:
    """Let the owner do what is wanted, where that is not so."""
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & wanted != wanted:
            path.chmod(stat.S_IMODE(mode) | wanted)
