"""Programs that nothing holds: what they did to the repository is found, put back, recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from pytest_django.fixtures import Settings

from recovery.errors import ErrorCode
from tests.work.coding.repositories import PersonsRepository, call, job_in, shell
from turns.tools.registry import State
from work.coding import confinement
from work.coding.confinement import Hold
from work.coding.workspace import Workspace

PERSON = "-c user.name=x -c user.email=x@x"


@pytest.fixture
async def workspace(
    repository: PersonsRepository, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workspace]:
    """A workspace on a machine that holds no program, whose operator lets them run."""
    monkeypatch.setattr(confinement, "hold", lambda: Hold.NONE)
    settings.HOLDFAST_CODING_SANDBOX = "best_effort"
    (repository.common / "hooks" / "pre-push").write_text("#!/bin/sh\n")
    workspace = await job_in(repository.top).open()
    yield workspace
    await workspace.close()


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (f"git -C $TOP {PERSON} commit -q --allow-empty -m evil", "refs/heads/main"),
        ("git -C $TOP update-ref -d refs/heads/main", "refs/heads/main"),
        ("git -C $TOP branch evil", "refs/heads/evil"),
        ("git -C $TOP tag evil", "refs/tags/evil"),
        ("git -C $TOP symbolic-ref HEAD refs/heads/evil", "HEAD"),
        ("git -C $TOP config core.hooksPath /tmp", "config"),
        ("echo '#!/bin/sh' > $TOP/.git/hooks/post-commit", "hooks/post-commit"),
        ("chmod +x $TOP/.git/hooks/pre-push", "hooks/pre-push"),
        ("rm $TOP/.git/hooks/pre-push", "hooks/pre-push"),
        ("ln -sf /tmp/x $TOP/.git/hooks/pre-push", "hooks/pre-push"),
        ("mkdir -p $TOP/.git/info; echo '* -text' > $TOP/.git/info/attributes", "attributes"),
        (
            "mkdir -p $TOP/.git/objects/info; echo / > $TOP/.git/objects/info/alternates",
            "alter",
        ),
        ("git -C $TOP rm -q --cached README.md", "index"),
        ("echo evil > $TOP/README.md", "README.md"),
        ("rm $TOP/src/app.py", "src/app.py"),
        ("echo gitdir: /tmp > .git", ".git"),
        ("rm .git; mkdir .git; echo evil > .git/config", ".git"),
        ("rm .git; ln -s $TOP/.git .git", ".git"),
    ],
)
async def test_a_change_outside_the_branch_is_put_back_and_recorded(
    workspace: Workspace, repository: PersonsRepository, script: str, named: str
) -> None:
    before = contents(repository)
    pointer = (workspace.root / ".git").read_text()
    outcome = await shell(workspace, f"TOP={repository.top}; {script}; echo done")
    assert (outcome.state, outcome.error_code) == (
        State.FAILED,
        ErrorCode.REPOSITORY_TOUCHED,
    )
    assert named in outcome.result.splitlines()[0]
    assert contents(repository) == before
    assert (workspace.root / ".git").read_text() == pointer
    # and the job goes on
    await call(workspace, "write_file", path="new", text="x")
    assert (await call(workspace, "commit", message="New")).state == State.SUCCEEDED


def contents(repository: PersonsRepository) -> dict[str, str]:
    """Return what the person's repository is, without the times of what was put back."""
    return {
        name: " ".join(said.split()[::2])
        for name, said in repository.fingerprint(
            without=[".git/worktrees", ".git/COMMIT_EDITMSG", "refs/holdfast", "objects"]
        ).items()
        if " " in said
    } | {"refs": repository.git("for-each-ref", "refs/heads", "refs/tags")}


async def test_what_was_found_of_a_ref_is_kept(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    """It might have been the person's own commit after all."""
    script = f"git -C {repository.top} {PERSON} commit -q --allow-empty -m 'Whose is it'"
    await shell(workspace, script)
    (kept,) = repository.git("for-each-ref", "--format=%(refname)", "refs/holdfast").split()
    assert kept.endswith("/heads/main")
    assert repository.git("log", "-1", "--format=%s", kept) == "Whose is it"


async def test_what_the_person_had_not_committed_is_left_to_them(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    (repository.top / "README.md").write_text("in the middle of it")
    (repository.top / "draft").write_text("a draft")
    quiet = await shell(workspace, "true")
    assert quiet.state == State.SUCCEEDED
    assert (repository.top / "README.md").read_text() == "in the middle of it"
    assert (repository.top / "draft").read_text() == "a draft"


async def test_the_jobs_own_branch_may_be_worked_on(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    script = f"echo x > new; git add new; git {PERSON} commit -q -m 'By a command'"
    assert (await shell(workspace, script)).state == State.SUCCEEDED
    assert repository.git("log", "-1", "--format=%s", "holdfast/job-1") == "By a command"


async def test_other_worktrees_are_looked_at_too(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    other = repository.top.with_name("other")
    repository.git("worktree", "add", "--quiet", "-b", "topic", str(other))
    outcome = await shell(workspace, f"echo evil > {other}/README.md")
    assert outcome.error_code == ErrorCode.REPOSITORY_TOUCHED
    assert (other / "README.md").read_text() == "hello\nworld\n"
