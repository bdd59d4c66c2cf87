from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from recovery.errors import ErrorCode
from turns.tools.registry import State, ToolFailed
from work.coding.paths import Entry, Kind, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / ".git").write_text("gitdir: elsewhere")
    (root / "file").write_text("content")
    (tmp_path / "staging").mkdir()
    (tmp_path / "outside").mkdir()
    return Tree(root, staging=tmp_path / "staging", submodules={"vendor/lib"})


def refused(failed: pytest.ExceptionInfo[ToolFailed]) -> bool:
    return (failed.value.code, failed.value.state) == (ErrorCode.PATH_REFUSED, State.REFUSED)


def test_a_file_is_replaced_in_one_step_and_keeps_its_permissions(
    tree: Tree, tmp_path: Path
) -> None:
    file = tmp_path / "tree" / "file"
    file.chmod(0o751)
    before = file.stat().st_ino
    assert tree.write("file", b"new") is False
    assert file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    # another file took its place: who had the old one open still has the whole of it
    assert file.stat().st_ino != before
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_new_file_comes_with_its_directories(tree: Tree, tmp_path: Path) -> None:
    assert tree.write("a/b/c.sh", b"#!/bin/sh\n", executable=True) is True
    assert stat.S_IMODE((tmp_path / "tree/a/b/c.sh").stat().st_mode) == 0o755
    tree.write("a/b/c.sh", b"", executable=False)
    assert stat.S_IMODE((tmp_path / "tree/a/b/c.sh").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "path",
    [
        "/tmp/x",
        "../outside/x",
        ".git",
        ".GIT/config",
        "sub/.git/config",
        "vendor/lib/x",
        "a\0b",
    ],
)
def test_what_is_not_the_jobs_is_neither_written_nor_deleted(
    tree: Tree, tmp_path: Path, path: str
) -> None:
    for attempt in (
        lambda: tree.write(path, b"evil"),
        lambda: tree.delete(path),
    ):
        with pytest.raises(ToolFailed) as failed:
            attempt()
        assert refused(failed)
    assert (tmp_path / "tree" / ".git").read_text() == "gitdir: elsewhere"
    assert list((tmp_path / "outside").iterdir()) == []


def test_writing_through_a_link_is_refused_and_deleting_one_removes_the_link(
    tree: Tree, tmp_path: Path
) -> None:
    target = tmp_path / "outside" / "target"
    target.write_text("canary")
    (tmp_path / "tree" / "link").symlink_to(target)
    (tmp_path / "tree" / "away").symlink_to(tmp_path / "outside")
    for path in ("link", "away/target", "away/new"):
        with pytest.raises(ToolFailed) as failed:
            tree.write(path, b"evil")
        assert refused(failed)
    tree.delete("link")
    assert not (tmp_path / "tree" / "link").is_symlink()
    assert target.read_text() == "canary"
    assert list((tmp_path / "outside").iterdir()) == [target]


def test_a_file_with_a_name_outside_is_not_written(tree: Tree, tmp_path: Path) -> None:
    target = tmp_path / "outside" / "target"
    target.write_text("canary")
    (tmp_path / "tree" / "hard").hardlink_to(target)
    with pytest.raises(ToolFailed) as failed:
        tree.write("hard", b"evil")
    assert refused(failed)
    assert target.read_text() == "canary"


def test_nothing_happens_where_the_last_look_says_no(tree: Tree, tmp_path: Path) -> None:
    def no() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        tree.write("file", b"new", before=no)
    with pytest.raises(RuntimeError):
        tree.delete("file", before=no)
    assert (tmp_path / "tree" / "file").read_text() == "content"
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_listing_says_what_each_entry_is_and_nothing_of_gits_own(
    tree: Tree, tmp_path: Path
) -> None:
    root = tmp_path / "tree"
    (root / "link").symlink_to("/etc")
    os.mkfifo(root / "pipe")
    (root / "other").mkdir()
    (root / "other" / ".git").mkdir()
    assert tree.entries("") == [
        Entry("file", Kind.FILE, 7),
        Entry("link", Kind.LINK, 0),
        Entry("other", Kind.REPOSITORY, 0),
        Entry("pipe", Kind.OTHER, 0),
        Entry("sub", Kind.DIRECTORY, 0),
    ]


@pytest.mark.parametrize("path", ["absent", "absent/file", "file/below", "sub", "", "file/"])
def test_what_is_not_there_is_said_to_be_so(tree: Tree, path: str) -> None:
    with pytest.raises(ToolFailed) as failed, tree.reading(path):
        pass
    assert failed.value.code == ErrorCode.NOT_FOUND
