"""A coding job changes its own branch. Whatever its programs try, nothing else changes, no
secret is seen, nothing goes on running, and the step says what became of it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from recovery.errors import ErrorCode
from tests.support.waiting import wait_until
from tests.work.coding.conftest import sessions_may_be_looked_at
from tests.work.coding.repositories import PersonsRepository, call, job_in, shell
from turns.tools.registry import State
from work.coding import processtree
from work.coding import workspace as workspaces
from work.coding.places import Place
from work.coding.workspace import Workspace

__all__ = ["sessions_may_be_looked_at"]

CANARY = "canary-b41d"


@pytest.fixture(autouse=True)
def home(settings: Settings, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "secrets").mkdir(parents=True)
    (home / "secrets" / "secret_key").write_text(CANARY)
    settings.HOLDFAST_HOME = home
    return home


@pytest.fixture
def repository(tmp_path: Path) -> PersonsRepository:
    repository = PersonsRepository(tmp_path / "project")
    repository.commit({"README.md": "hello\n", "src/app.py": "print('hello')\n"})
    repository.git("worktree", "add", "--quiet", "-b", "topic", str(tmp_path / "topic"))
    return repository


@pytest.fixture
async def workspace(
    repository: PersonsRepository, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workspace]:
    monkeypatch.setattr(
        workspaces, "_LIMITS", replace(workspaces._LIMITS, timeout_seconds=20.0)
    )
    workspace = await job_in(repository.top).open()
    yield workspace
    await workspace.close()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../../secrets/secret_key",
        "src/../../../../secrets/secret_key",
        ".git",
        ".GIT",
        ".git/hooks/post-commit",
        "away/secret_key",
        "link",
        "hard",
        "pipe",
        "a\0b",
    ],
)
async def test_no_tool_leaves_the_worktree_and_the_step_says_refused(
    workspace: Workspace, home: Path, tmp_path: Path, path: str
) -> None:
    (workspace.root / "away").symlink_to(home / "secrets")
    (workspace.root / "link").symlink_to(home / "secrets" / "secret_key")
    (workspace.root / "hard").hardlink_to(home / "secrets" / "secret_key")
    os.mkfifo(workspace.root / "pipe")
    pointer = (workspace.root / ".git").read_text()
    for tool, arguments in (
        ("read_file", {}),
        ("write_file", {"text": "evil"}),
        ("edit_file", {"old_text": CANARY, "new_text": "evil"}),
        ("list_files", {"path": f"{path}/x"}),
    ):
        outcome = await call(workspace, tool, **{"path": path, **arguments})
        assert CANARY not in outcome.result
        assert (outcome.state, outcome.error_code) in {
            (State.REFUSED, ErrorCode.PATH_REFUSED),
            # below what is no directory there is nothing
            *([(State.FAILED, ErrorCode.NOT_FOUND)] if tool == "list_files" else []),
        }
    assert (home / "secrets" / "secret_key").read_text() == CANARY
    assert (workspace.root / ".git").read_text() == pointer
    (workspace.root / "hard").unlink()


async def test_a_search_reads_nothing_through_links(workspace: Workspace, home: Path) -> None:
    (workspace.root / "away").symlink_to(home / "secrets")
    (workspace.root / "link").symlink_to(home / "secrets" / "secret_key")
    (workspace.root / "hard").hardlink_to(home / "secrets" / "secret_key")
    found = await call(workspace, "search_files", text="canary")
    assert found.state == State.SUCCEEDED
    assert CANARY not in found.result
    assert found.result.startswith("[0 hits in ")
    (workspace.root / "hard").unlink()


@pytest.mark.parametrize("path", ["away", "away/secret_key", "link", "nested", "nested/x"])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("search_files", {"text": "canary"}),
        ("show_changes", {}),
        ("list_files", {}),
        ("list_files", {"recursive": True}),
    ],
)
async def test_looking_below_a_path_that_leads_out_is_refused(
    workspace: Workspace, home: Path, path: str, tool: str, arguments: dict[str, object]
) -> None:
    (workspace.root / "away").symlink_to(home / "secrets")
    (workspace.root / "link").symlink_to(home / "secrets" / "secret_key")
    (workspace.root / "nested" / ".git").mkdir(parents=True)
    looked = await call(workspace, tool, path=path, **arguments)
    assert (looked.state, looked.error_code) == (State.REFUSED, ErrorCode.PATH_REFUSED)
    assert CANARY not in looked.result


async def test_a_link_that_is_swapped_in_meanwhile_leads_nowhere(
    workspace: Workspace, home: Path
) -> None:
    root, secrets = workspace.root, home / "secrets"
    (root / "swapped").mkdir()
    (root / "swapped" / "secret_key").write_text("ordinary")
    (root / "link").symlink_to(secrets)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for old, new in (
                ("swapped", "aside"), ("link", "swapped"), ("swapped", "link"),
                ("aside", "swapped"),
            ):  # fmt: skip
                with suppress(OSError):  # a write may just have made that directory
                    (root / old).rename(root / new)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for n in range(300):
            await call(workspace, "write_file", path="swapped/secret_key", text=f"evil {n}")
            await call(workspace, "write_file", path=f"swapped/new-{n}", text="evil")
            read = await call(workspace, "read_file", path="swapped/secret_key")
            assert CANARY not in read.result
            await call(workspace, "delete_file", path="swapped/secret_key")
    finally:
        ended.set()
        swapping.join()
    assert [path.name for path in secrets.iterdir()] == ["secret_key"]
    assert (secrets / "secret_key").read_text() == CANARY


async def test_the_workers_secrets_are_not_seen_by_a_check(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "LLM_API_KEY", "BROKER_URL", "AWS_SECRET"):
        monkeypatch.setenv(name, CANARY)
    secrets = Place(1).base.parent.parent / "secrets"
    outcome = await shell(
        workspace,
        f"env; cat {secrets}/*; ls {secrets}; cat /proc/[0-9]*/environ; cat /etc/shadow; "
        "ls -a ~ / ; true",
    )
    assert CANARY not in outcome.result
    assert "secret_key\n" not in outcome.result
    environment = await call(workspace, "run_command", argv=["env"])
    names = {line.partition("=")[0] for line in environment.result.splitlines()[1:]}
    assert names == {"PATH", "LANG", "HOME", "TMPDIR"}


ATTACKS = {
    "commit to main": "git -C $TOP -c user.name=x -c user.email=x@x commit --allow-empty -m x",
    "move main": "git update-ref refs/heads/main HEAD^{tree}",
    "delete a branch": "git branch -D topic; rm -f $TOP/.git/refs/heads/topic",
    "check out main": "git checkout main || git switch --ignore-other-worktrees main",
    "write a hook": "echo '#!/bin/sh' > $TOP/.git/hooks/post-commit",
    "set the hooks": "git config core.hooksPath /tmp",
    "set a filter": "git config filter.x.clean /bin/false; echo '* filter=x' > .gitattributes",
    "write to main's files": "echo evil > $TOP/README.md; rm -rf $TOP/src",
    "write to a worktree": "echo evil > $TOP/../topic/README.md; rm $TOP/../topic/.git",
    "write to Git's directory": "echo evil > $TOP/.git/config; rm -rf $TOP/.git/refs",
    "write an object": "mkdir $TOP/.git/objects/zz; echo x | git hash-object -w --stdin",
    "borrow objects": "echo / > $TOP/.git/objects/info/alternates",
    "remove its own records": "rm -rf $TOP/.git/worktrees",
    "lock the repository": "touch $TOP/.git/index.lock $TOP/.git/packed-refs.lock",
    "close it off": "chmod -R 0 $TOP; touch -d 2001-01-01 $TOP/README.md; chown 1 $TOP",
    "write to another job": "echo evil > ../../2/job-2/README.md; rm -rf ../../2",
    "write to its own records": "echo 9 > ../holder; rm -rf ../running ../state-*",
    "push somewhere": "git push /tmp/x HEAD; git clone -q $TOP $TOP/../copy",
    "link it in": "ln $TOP/.git/config c; ln -s $TOP t; echo evil > t/README.md; rm t",
    "climb out": "cd ..; cd ..; echo x > evil; mount --bind $TOP . ; chroot $TOP",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_nothing_but_the_jobs_branch_is_changed_by_a_command(
    workspace: Workspace, repository: PersonsRepository, tmp_path: Path, attack: str
) -> None:
    other = await job_in(repository.top, pk=2).open()
    before = everything(repository, tmp_path)
    outcome = await shell(workspace, f"TOP={repository.top}\n{ATTACKS[attack]}")
    assert everything(repository, tmp_path) == before
    # It is recorded: the step holds the command, and what came of it.
    assert outcome.result.startswith("[exit status ")
    assert outcome.state in {State.FAILED, State.SUCCEEDED}
    assert (await call(other, "read_file", path="README.md")).state == State.SUCCEEDED
    await call(workspace, "write_file", path="answer", text="42\n")
    assert (await call(workspace, "commit", message="The answer")).state == State.SUCCEEDED
    await other.close()
    assert repository.shown("holdfast/job-1:answer") == "42"
    assert repository.git("rev-parse", "main") == repository.git("rev-parse", "topic")


def everything(repository: PersonsRepository, tmp_path: Path) -> dict[str, dict[str, str]]:
    """Return every byte of the repository, of the person's other worktree, and of the places of
    both jobs but for what the first may change."""
    topic, jobs = PersonsRepository.__new__(PersonsRepository), Place(1).base.parent
    topic.top = tmp_path / "topic"
    places = PersonsRepository.__new__(PersonsRepository)
    places.top = jobs
    return {
        "main": repository.fingerprint(),
        "topic": topic.fingerprint(),
        "jobs": places.fingerprint(without=["1/job-1", "1/scratch", "1/running", "1/staging"]),
        "beside": {path.name: "" for path in tmp_path.iterdir()},
    }


@pytest.mark.parametrize(
    "script",
    [
        "echo gitdir: /tmp/evil > .git",
        "rm .git; cp -r {top}/.git .git; git config core.fsmonitor 'touch {tree}/ran'",
        "rm .git; git init -q .; printf 'touch {tree}/ran' > .git/hooks/post-commit; "
        "chmod +x .git/hooks/post-commit",
        "rm .git; ln -s {top}/.git .git",
        "rm .git",
    ],
)
async def test_a_rewritten_pointer_to_the_repository_is_put_back_and_recorded(
    workspace: Workspace, repository: PersonsRepository, script: str
) -> None:
    pointer = (workspace.root / ".git").read_text()
    outcome = await shell(workspace, script.format(top=repository.top, tree=workspace.root))
    assert (outcome.state, outcome.error_code) == (
        State.FAILED,
        ErrorCode.REPOSITORY_TOUCHED,
    )
    assert (workspace.root / ".git").read_text() == pointer
    await call(workspace, "write_file", path="answer", text="42\n")
    await call(workspace, "commit", message="The answer")
    assert not (workspace.root / "ran").exists()
    assert repository.git("log", "--format=%s", "main..holdfast/job-1") == "The answer"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("setsid sh -c 'trap \"\" TERM; sleep 1000' & exit 0", None),
        ("trap '' TERM; (trap '' TERM; sleep 1000) & while :; do :; done", "tool_timeout"),
        ("env -i /bin/sh -c 'sleep 1000 & setsid sleep 1000 &'", None),
        ("yes | head -c 50M", None),
        ("exec cat /dev/zero", "tool_result_too_large"),
        ("sleep 1000", "tool_timeout"),
    ],
)
async def test_whatever_a_command_starts_ends_with_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, script: str, code: str | None
) -> None:
    if code == "tool_timeout":
        limits = replace(workspaces._LIMITS, timeout_seconds=2.0)
        monkeypatch.setattr(workspaces, "_LIMITS", limits)
    outcome = await shell(workspace, script)
    assert outcome.error_code == code
    assert processtree.given(Place(1).mark.encode()) == []
    own = processtree.Process.now(os.getpid())
    assert own is not None
    assert not [one for one in own.descendants() if b"sleep" in command(one)]


def command(process: processtree.Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_cancelled_job_leaves_nothing_running(workspace: Workspace) -> None:
    script = "trap '' TERM; touch started; setsid sh -c 'sleep 1000' & while :; do :; done"
    running = asyncio.ensure_future(shell(workspace, script))
    started = workspace.root / "started"
    await asyncio.to_thread(wait_until, started.exists, "it runs")
    running.cancel()
    mark = Place(1).mark.encode()
    await asyncio.to_thread(wait_until, lambda: not processtree.given(mark), "all has ended")
