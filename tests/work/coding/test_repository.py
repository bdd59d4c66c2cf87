from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import ErrorCode
from tests.work.coding.repositories import PersonsRepository
from work.coding import bounds, repository
from work.coding.errors import WorkspaceRefused
from work.coding.git import Git, git_program
from work.coding.places import Place
from work.coding.programs import Programs
from work.coding.repository import Repository


@pytest.fixture
def git(home: Path) -> Git:
    place = Place(1)
    return Git(Programs(place.take(1)), writable=[place.base])


def find(git: Git, cwd: Path, *roots: Path) -> Repository:
    return repository.find(git, roots=[str(root) for root in roots or (cwd,)], cwd=str(cwd))


def refused(git: Git, cwd: Path, *roots: Path) -> tuple[ErrorCode, str]:
    with pytest.raises(WorkspaceRefused) as failed:
        find(git, cwd, *roots)
    return failed.value.code, failed.value.reason


def test_a_directory_of_a_repository_is_found(git: Git, repository: PersonsRepository) -> None:
    found = find(git, repository.top / "src", repository.top)
    assert found.common == repository.common
    assert found.top == repository.top
    assert found.prefix == "src"
    assert found.head == repository.git("rev-parse", "HEAD")
    assert find(git, repository.top).prefix == ""


@pytest.mark.parametrize("name", ["with space", "Grüße 日本", "a\nb", "-dash", ":(top)x"])
def test_any_name_will_do(git: Git, tmp_path: Path, name: str) -> None:
    repository = PersonsRepository(tmp_path / name)
    repository.commit({"datei ä.txt": "x"})
    assert find(git, repository.top).top == tmp_path / name


def test_a_bare_repository_has_no_files_of_its_own(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    bare = tmp_path / "bare.git"
    repository.git("clone", "--quiet", "--bare", str(repository.top), str(bare))
    found = find(git, bare)
    assert (found.common, found.top, found.prefix) == (bare, None, "")


def test_a_detached_head_is_where_the_job_begins(
    git: Git, repository: PersonsRepository
) -> None:
    first = repository.git("rev-parse", "HEAD")
    repository.commit({"README.md": "more"})
    repository.git("checkout", "--quiet", "--detach", first)
    assert find(git, repository.top).head == first


def test_a_worktree_of_the_persons_begins_at_its_own_head(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    repository.git("worktree", "add", "--quiet", "-b", "topic", str(other))
    repository.commit({"README.md": "more"})
    found = find(git, other, other, repository.top)
    assert (found.common, found.top) == (repository.common, other)
    assert found.head == repository.git("rev-parse", "topic")


def test_a_root_inside_which_the_repository_does_not_lie_is_refused(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    outside = (ErrorCode.OUTSIDE_ROOTS, "The repository lies outside of what jobs may work in.")
    other = tmp_path / "other"
    repository.git("worktree", "add", "--quiet", "-b", "topic", str(other))
    assert refused(git, other) == outside
    # A repository above the root is not even looked for.
    assert refused(git, repository.top / "src")[0] == ErrorCode.NOT_A_REPOSITORY


def test_a_repository_whose_own_directory_lies_elsewhere_is_refused(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.git"
    repository.common.rename(elsewhere)
    repository.common.write_text(f"gitdir: {elsewhere}\n")
    assert refused(git, repository.top)[0] == ErrorCode.OUTSIDE_ROOTS
    repository.common.unlink()
    repository.common.symlink_to(elsewhere)
    assert refused(git, repository.top)[0] == ErrorCode.OUTSIDE_ROOTS


def test_a_root_that_has_become_a_link_is_refused(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.symlink_to(repository.top)
    assert refused(git, root)[0] == ErrorCode.OUTSIDE_ROOTS


def test_a_directory_that_has_become_a_link_out_is_refused(
    git: Git, repository: PersonsRepository, tmp_path: Path
) -> None:
    secret = PersonsRepository(tmp_path / "secret")
    secret.commit({"a": "canary"})
    (repository.top / "sub").symlink_to(secret.top)
    assert refused(git, repository.top / "sub", repository.top)[0] == ErrorCode.OUTSIDE_ROOTS


def test_the_installations_own_directory_is_no_place_to_work(
    git: Git, home: Path, tmp_path: Path
) -> None:
    inside = PersonsRepository(home / "worktrees" / "2" / "job-2")
    inside.commit({"a": "another job's"})
    assert refused(git, inside.top, tmp_path)[0] == ErrorCode.OUTSIDE_ROOTS


def test_what_is_no_repository_is_said_to_be_none(git: Git, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    assert refused(git, plain) == (
        ErrorCode.DIRECTORY_MISSING,
        "The directory is not there.",
    )
    plain.mkdir()
    assert refused(git, plain) == (
        ErrorCode.NOT_A_REPOSITORY,
        "There is no repository here.",
    )


def test_a_repository_without_a_commit_is_nothing_to_begin_from(
    git: Git, tmp_path: Path
) -> None:
    for name, options in (("empty", ()), ("empty.git", ("--bare",))):
        empty = PersonsRepository(tmp_path / name, *options)
        assert refused(git, empty.top) == (
            ErrorCode.REPOSITORY_EMPTY,
            "The repository has no commit yet.",
        )


def test_gits_own_directory_is_no_place_to_work(
    git: Git, repository: PersonsRepository
) -> None:
    assert refused(git, repository.common, repository.top)[0] == ErrorCode.NOT_A_REPOSITORY


def test_a_machine_without_git_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "git"
    old.write_text("#!/bin/sh\necho git version 2.17.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorkspaceRefused) as failed:
        git_program()
    assert failed.value.code == ErrorCode.WORKSPACE_FAILED
    needed = ".".join(map(str, bounds.GIT_VERSION))
    assert failed.value.reason == f"Git {needed} or newer is needed on the worker's machine."
