"""Repositories of a person, and jobs in them, without a database."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from recovery.errors import ErrorCode
from recovery.fences import Fence
from turns.tools.registry import Invocation, State, ToolFailed
from turns.tools.runner import Outcome, failure, invoke
from work.coding.opening import open_workspace
from work.coding.workspace import Workspace

PERSON: Final = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "A Person",
    "GIT_AUTHOR_EMAIL": "person@example.org",
    "GIT_COMMITTER_NAME": "A Person",
    "GIT_COMMITTER_EMAIL": "person@example.org",
}


class PersonsRepository:
    """A repository as a person has it on a computer."""

    def __init__(self, top: Path, *options: str) -> None:
        self.top = top
        top.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main", *options)
        self.common = top / ".git" if (top / ".git").exists() else top

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run Git as the person does."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=cwd or self.top,
            env=PERSON,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.removesuffix("\n")

    def commit(self, files: Mapping[str, str | bytes], message: str = "A change") -> str:
        """Commit the files; return the commit's id."""
        for name, content in files.items():
            path = self.top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def branches(self) -> list[str]:
        """Return the names of all branches."""
        return self.git("branch", "--format=%(refname:short)").split()

    def shown(self, name: str) -> str:
        """Return a file of a commit, as `commit:path`."""
        return self.git("show", name)

    def fingerprint(self, *, without: Sequence[str] = ()) -> dict[str, str]:
        """Return every file of the person's directory and of Git's own, but for objects, logs
        and what `without` names: byte by byte, with permissions and times."""
        return {
            name: print_of(path)
            for name, path in _files(self.top)
            if not any(part in name for part in (".git/objects", ".git/logs", *without))
        }


def _files(top: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(top.rglob("*")):
        yield str(path.relative_to(top)), path


def print_of(path: Path) -> str:
    """Return what changes when the file, its permissions or its time of change do."""
    known = path.lstat()
    if path.is_symlink():
        return f"{known.st_mode:o} -> {path.readlink()}"
    if not path.is_file():
        return f"{known.st_mode:o}"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{known.st_mode:o} {known.st_mtime_ns} {digest}"


@dataclass
class Job:
    """What of a job's row a workspace needs."""

    pk: int
    cwd: str
    authority: dict[str, Any]
    base_commit: str = ""
    branch: str = ""
    generation: int = 0
    checkpoints: list[tuple[str, str]] = field(default_factory=list)

    def claim(self) -> Fence:
        """Take the job once more."""
        self.generation += 1
        return Fence(self.pk, self.generation, uuid4())

    def checkpoint(self, _fence: Fence, *, base_commit: str, branch: str) -> None:
        """Commit where the job stands."""
        self.base_commit, self.branch = base_commit, branch
        self.checkpoints.append((base_commit, branch))

    async def open(self) -> Workspace:
        """Claim the job and open its workspace."""
        return await open_workspace(self, fence=self.claim(), checkpoint=self.checkpoint)


def job_in(
    directory: Path,
    *,
    pk: int = 1,
    tier: str = "shell",
    roots: Sequence[Path] = (),
    checks: Mapping[str, Sequence[str]] | None = None,
) -> Job:
    """Return a job in the directory, which is its root unless others are named."""
    authority = {
        "tier": tier,
        "roots": [str(root) for root in roots or [directory]],
        "checks": {name: list(words) for name, words in (checks or {}).items()},
    }
    return Job(pk, str(directory), authority)


# how a call ends whose arguments are not what the tool takes
WRONG: Final = (State.FAILED, ErrorCode.INVALID_TOOL_ARGUMENTS)


def ended(outcome: Outcome) -> tuple[str, ErrorCode | None]:
    """Return how a call ended."""
    return outcome.state, outcome.error_code


async def call(workspace: Workspace, name: str, /, **arguments: Any) -> Outcome:
    """Call a tool as the loop of a job does."""
    try:
        tool = workspace.registry().require(name)
    except ToolFailed as refused:
        return failure(refused)
    return await invoke(
        tool,
        Invocation(
            owner_id=1,
            conversation_id=1,
            before_message_id=1,
            key=uuid4(),
            arguments=tool.arguments(**arguments),
        ),
    )


async def shell(workspace: Workspace, script: str) -> Outcome:
    """Have a shell run the script in the worktree."""
    return await call(workspace, "run_command", argv=["/bin/sh", "-c", script])
