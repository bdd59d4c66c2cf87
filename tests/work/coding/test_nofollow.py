from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from work.coding import nofollow
from work.coding.nofollow import OutOfBounds, Why


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """An open directory with a file outside beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("canary")
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("content")
    descriptor = os.open(tmp_path / "tree", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def read(root: int, path: str) -> bytes:
    *above, name = nofollow.components(path)
    with nofollow.directory(root, above) as parent:
        descriptor = nofollow.open_file(name, parent)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def refusal(root: int, path: str) -> Why:
    with pytest.raises(OutOfBounds) as refused:
        read(root, path)
    return refused.value.why


def test_an_ordinary_path_is_opened(root: int) -> None:
    assert read(root, "sub/file") == b"content"
    assert read(root, "./sub//./file") == b"content"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", Why.ABSOLUTE),
        ("../outside/secret", Why.PARENT),
        ("sub/../../outside/secret", Why.PARENT),
        ("sub/fi\0le", Why.NAME),
        ("sub/\ud800", Why.NAME),
        ("x" * 256, Why.NAME),
        (".git", Why.GIT),
        (".GIT/config", Why.GIT),
        ("sub/.Git/hooks/post-commit", Why.GIT),
        (".g\u200cit/config", Why.GIT),
        (".git./config", Why.GIT),
        (".git ", Why.GIT),
        ("GIT~1/config", Why.GIT),
        (".git::$INDEX_ALLOCATION/config", Why.GIT),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(root: int, path: str, why: Why) -> None:
    assert refusal(root, path) == why


@pytest.mark.parametrize("name", [".gitignore", ".gitattributes", ".github", "git", "a.git"])
def test_names_that_only_begin_like_gits_own_are_ordinary(name: str) -> None:
    assert nofollow.components(name) == (name,)


def test_links_are_refused_wherever_they_stand(root: int, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "link").symlink_to(tmp_path / "outside" / "secret")
    (tree / "away").symlink_to(tmp_path / "outside")
    (tree / "inside").symlink_to("sub")
    assert refusal(root, "link") == Why.LINK
    assert refusal(root, "away/secret") == Why.LINK
    # Where it leads may change at any time, so that it leads inside now does not count.
    assert refusal(root, "inside/file") == Why.LINK


def test_what_is_no_file_is_refused_without_waiting(root: int, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "socket"))
        assert refusal(root, "socket") == Why.SPECIAL
    assert refusal(root, "fifo") == Why.SPECIAL
    with pytest.raises(IsADirectoryError):
        read(root, "sub")


def test_a_file_with_a_name_outside_is_refused(root: int, tmp_path: Path) -> None:
    (tmp_path / "tree" / "hard").hardlink_to(tmp_path / "outside" / "secret")
    assert refusal(root, "hard") == Why.HARD_LINK


def test_another_repository_is_not_entered(root: int, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub" / ".git").write_text("gitdir: elsewhere")
    assert refusal(root, "sub/file") == Why.NESTED


def test_a_link_swapped_in_at_any_moment_leads_nowhere(root: int, tmp_path: Path) -> None:
    """A directory and a link to the outside change places all the time."""
    tree = tmp_path / "tree"
    (tree / "swapped").mkdir()
    (tree / "swapped" / "secret").write_text("content")
    (tree / "link").symlink_to(tmp_path / "outside")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            (tree / "swapped").rename(tree / "aside")
            (tree / "link").rename(tree / "swapped")
            (tree / "swapped").rename(tree / "link")
            (tree / "aside").rename(tree / "swapped")

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[bytes | Why] = set()
    try:
        for _ in range(20_000):
            try:
                seen.add(read(root, "swapped/secret"))
            except OutOfBounds as refused:
                seen.add(refused.why)
            except FileNotFoundError:
                pass
            if len(seen) > 1:
                break
    finally:
        ended.set()
        swapping.join()
    assert b"canary" not in seen
    assert seen == {b"content", Why.LINK}
