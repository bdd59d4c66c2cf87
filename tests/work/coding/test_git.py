"""Nothing a repository says makes Git, as we run it, start another program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.work.coding.repositories import Job, PersonsRepository, call, job_in
from work.coding.worktrees import Facts

HOOKS = (
    "post-checkout", "post-commit", "pre-commit", "prepare-commit-msg", "commit-msg",
    "post-index-change", "reference-transaction", "post-merge", "fsmonitor-watchman",
    "pre-auto-gc", "post-rewrite", "pre-applypatch",
)  # fmt: skip


@pytest.fixture
def canary(repository: PersonsRepository, tmp_path: Path) -> Path:
    """A program that leaves a trace when it runs, and passes its input on.

    The trace is where Git may write: elsewhere the kernel would keep it from being left.
    """
    program = tmp_path / "canary"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {trace(repository)}\ncat\n")
    program.chmod(0o755)
    return program


def trace(repository: PersonsRepository) -> Path:
    return repository.common / "sung"


async def a_whole_job(job: Job) -> Facts:
    """Open, edit, look, commit, leave something, close."""
    workspace = await job.open()
    await call(workspace, "edit_file", path="README.md", old_text="world", new_text="moon")
    await call(workspace, "list_files", recursive=True)
    await call(workspace, "show_changes")
    await call(workspace, "commit", message="A change")
    await call(workspace, "write_file", path="new", text="x")
    await workspace.close()
    assert workspace.left is not None
    return workspace.left


def hooks(repository: PersonsRepository, canary: Path) -> None:
    for name in HOOKS:
        (repository.common / "hooks" / name).symlink_to(canary)


def hooks_elsewhere(repository: PersonsRepository, canary: Path) -> None:
    directory = canary.with_name("hooks")
    directory.mkdir()
    for name in HOOKS:
        (directory / name).symlink_to(canary)
    repository.git("config", "core.hooksPath", str(directory))


def file_system_monitor(repository: PersonsRepository, canary: Path) -> None:
    repository.git("config", "core.fsmonitor", str(canary))


def filters(repository: PersonsRepository, canary: Path) -> None:
    for driver in ("lfs", "Strange = name.x"):
        for key in ("clean", "smudge", "process"):
            repository.git("config", f"filter.{driver}.{key}", str(canary))
        repository.git("config", f"filter.{driver}.required", "true")
    (repository.common / "info").mkdir(exist_ok=True)
    (repository.common / "info" / "attributes").write_text("* filter=lfs\n")


def filters_of_this_branch(repository: PersonsRepository, canary: Path) -> None:
    included = canary.with_name("included")
    included.write_text(f'[filter "late"]\n\tclean = {canary}\n\tsmudge = {canary}\n')
    repository.git("config", "includeIf.onbranch:holdfast/**.path", str(included))
    repository.commit({".gitattributes": "* filter=late\n"})


def differs(repository: PersonsRepository, canary: Path) -> None:
    repository.git("config", "diff.external", str(canary))
    repository.git("config", "diff.words.textconv", str(canary))
    repository.git("config", "diff.words.command", str(canary))
    repository.commit({".gitattributes": "* diff=words\n"})


def signers_and_pagers(repository: PersonsRepository, canary: Path) -> None:
    for key in ("gpg.program", "core.pager", "core.editor", "credential.helper",
                "core.sshCommand", "gpg.ssh.program", "core.askPass"):  # fmt: skip
        repository.git("config", key, str(canary))
    repository.git("config", "commit.gpgSign", "true")
    repository.git("config", "tag.gpgSign", "true")
    repository.git("config", "log.showSignature", "true")


@pytest.mark.parametrize(
    "trap",
    [
        hooks, hooks_elsewhere, file_system_monitor, filters, filters_of_this_branch, differs,
        signers_and_pagers,
    ],
)  # fmt: skip
async def test_no_program_that_the_repository_names_is_run(
    repository: PersonsRepository,
    canary: Path,
    trap: Callable[[PersonsRepository, Path], None],
) -> None:
    trap(repository, canary)
    trace(repository).unlink(missing_ok=True)  # the person's own Git may have run it
    facts = await a_whole_job(job_in(repository.top))
    assert not trace(repository).exists()
    assert facts.changed_files == 2
    assert repository.git("show", f"{facts.branch}:README.md") == "hello\nmoon"


async def test_a_repository_made_by_a_program_is_never_asked_anything(
    repository: PersonsRepository, canary: Path
) -> None:
    """Asked for its state, Git would run what that repository's configuration names."""
    repository.commit({".gitmodules": '[submodule "lib"]\n\tpath = lib\n\turl = ./lib\n'})
    head = repository.git("rev-parse", "HEAD")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},lib")
    repository.git("commit", "--quiet", "-m", "A submodule")
    job = job_in(repository.top)
    workspace = await job.open()
    for name in ("lib", "nested"):
        inner = PersonsRepository(workspace.root / name / "x")
        inner.commit({"a": "1"})
        inner.git("config", "core.fsmonitor", str(canary))
        inner.git("config", "filter.x.clean", str(canary))
        (inner.top / ".gitattributes").write_text("* filter=x\n")
        (inner.top / "a").write_text("2")
        (inner.top / ".git").rename(workspace.root / name / ".git")
    for name in ("show_changes", "list_files", "search_files"):
        await call(workspace, name, **({"text": "x"} if name == "search_files" else {}))
    outcome = await call(workspace, "commit", message="All")
    assert not trace(repository).exists()
    assert "nested" in outcome.result
    await workspace.close()
    assert not trace(repository).exists()
    assert repository.branches() == ["main"]


async def test_the_person_and_their_settings_are_not_asked(
    repository: PersonsRepository, canary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of the worker's own environment count for nothing."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(canary))
    monkeypatch.setenv("GIT_SSH_COMMAND", str(canary))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.fsmonitor'='canary'")
    facts = await a_whole_job(job_in(repository.top))
    assert facts.changed_files == 2
    assert not trace(repository).exists()
    said = repository.git("show", "--no-patch", "--format=%an <%ae> %cn <%ce>", facts.commit)
    assert said == "Holdfast <holdfast@localhost> Holdfast <holdfast@localhost>"
