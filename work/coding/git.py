"""Git as we run it: nothing a repository says makes it run another program or use a network.

A repository's configuration belongs to the person, but it can name programs: hooks, filters,
a file system monitor, signers, pagers, external diffs, credential helpers. None is needed for
what we do, so all are off. Plumbing is used where there is a choice; Git's own directory and
the worktree are always named, never found through a file that a job's program could rewrite.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from recovery.errors import ErrorCode
from work.coding import bounds, confinement
from work.coding.errors import WorkspaceRefused
from work.coding.orders import End, Limits
from work.coding.programs import Programs

log = structlog.get_logger(__name__)

AUTHOR_NAME: Final = "Holdfast"
AUTHOR_EMAIL: Final = "holdfast@localhost"
_NOTHING: Final = "/dev/null"
# Said on the command's own level, which outranks every file.
_SETTINGS: Final = (
    ("core.hooksPath", _NOTHING),
    ("core.fsmonitor", "false"),
    ("core.attributesFile", _NOTHING),
    ("core.excludesFile", _NOTHING),
    ("core.pager", "cat"),
    ("core.editor", ":"),
    ("core.askPass", ""),
    ("core.quotePath", "false"),
    ("core.bigFileThreshold", "64m"),
    # otherwise a file whose line ends do not come back as they were is refused
    ("core.safecrlf", "false"),
    ("color.ui", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("log.showSignature", "false"),
    ("credential.helper", ""),
    ("diff.external", ""),
    ("diff.ignoreSubmodules", "all"),
    ("diff.renames", "true"),
    ("diff.orderFile", _NOTHING),
    ("submodule.recurse", "false"),
    # it would write an extension into the repository's configuration
    ("worktree.useRelativePaths", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("i18n.commitEncoding", "UTF-8"),
    ("advice.addEmbeddedRepo", "false"),
)
# Git refuses to add what lies outside of a sparse checkout, and passes over changes there.
_WHOLE: Final = (("core.sparseCheckout", "false"),)
_ENVIRONMENT: Final = {
    "LC_ALL": "C.UTF-8",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": _NOTHING,
    "GIT_CONFIG_GLOBAL": _NOTHING,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": ":",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_AUTHOR_NAME": AUTHOR_NAME,
    "GIT_AUTHOR_EMAIL": AUTHOR_EMAIL,
    "GIT_COMMITTER_NAME": AUTHOR_NAME,
    "GIT_COMMITTER_EMAIL": AUTHOR_EMAIL,
}
_FILTER: Final = re.compile(r"filter\.(.+)\.(clean|smudge|process|required)", re.DOTALL)
# A filter without its programs leaves content as it is, unless it is required.
_FILTER_OFF: Final = (("clean", ""), ("smudge", ""), ("process", ""), ("required", "false"))


class GitFailed(Exception):
    """Git did not do what it was asked. `status` is its exit status, if it came to one."""

    def __init__(self, verb: str, status: int | None, said: str) -> None:
        super().__init__(f"git {verb}: {status}")
        self.verb = verb
        self.status = status
        # for decisions alone: it names paths, and is neither logged nor shown
        self.said = said


@dataclass(frozen=True, slots=True)
class At:
    """Which of Git's directories a command works on, and which worktree belongs to it."""

    git_dir: Path
    work_tree: Path | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which Git is told."""
        said = {"GIT_DIR": str(self.git_dir)}
        if self.work_tree is not None:
            said["GIT_WORK_TREE"] = str(self.work_tree)
        return said


class Git:
    """Git for one job. It changes what lies below `writable` and nothing else."""

    def __init__(self, programs: Programs, *, writable: Sequence[Path]) -> None:
        self._programs = programs
        self._writable = tuple(writable)

    def also_writing(self, *paths: Path) -> Git:
        """Return one that may change these too."""
        return Git(self._programs, writable=(*self._writable, *paths))

    def __call__(
        self,
        *arguments: str,
        at: At | None = None,
        cwd: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        seconds: float = bounds.GIT_SECONDS,
        filtering: bool = False,
        sparsely: bool = False,
        cut_bytes: int | None = None,
    ) -> bytes:
        """Return what Git answers.

        `filtering` says that the command turns files into objects or back; `sparsely`, that it
        leaves away what the person's sparse checkout does; `cut_bytes`, that the beginning of
        a long answer is enough.

        Raises:
            GitFailed: it ended with another status than 0, too late, or with a longer answer
                than is taken.
        """
        settings = [*_SETTINGS, *(() if sparsely else _WHOLE)]
        if filtering and at is not None:
            settings += self._filters_off(at)
        program = self._programs.prepare(
            [git_program(), *arguments],
            cwd=cwd,
            environment={
                **_ENVIRONMENT,
                "PATH": confinement.search_path(None),
                **_on_the_command_level(settings),
                **(at.environment if at else {}),
                **(environment or {}),
            },
            limits=_limits(seconds, cut_bytes or bounds.GIT_ANSWER_BYTES),
            confinement=confinement.of_git(writable=self._writable),
            merged=False,
        )
        ended = self._programs.run(program)
        if ended.end != End.EXITED or ended.exit_status != 0:
            if ended.end not in {End.EXITED, End.STOPPED, End.SUPERSEDED}:
                log.warning(
                    "coding.program_failed",
                    tool="git",
                    action=arguments[0],
                    error_code=ErrorCode.TOOL_FAILED,
                    reason=ended.end.value,
                    status=ended.error_number,
                )
            said = ended.errors.head.decode(errors="replace")
            raise GitFailed(arguments[0], ended.exit_status, said)
        if ended.output.left_out and cut_bytes is None:
            raise GitFailed(arguments[0], ended.exit_status, "the answer was too long")
        return ended.output.head

    def line(self, *arguments: str, at: At | None = None, cwd: Path = Path("/")) -> str:
        """Return an answer of one line."""
        return self(*arguments, at=at, cwd=cwd).decode(errors="surrogateescape").rstrip("\n")

    def names(
        self,
        *arguments: str,
        at: At,
        cwd: Path = Path("/"),
        environment: Mapping[str, str] | None = None,
        filtering: bool = False,
    ) -> list[str]:
        """Return an answer of names that end with NUL."""
        answer = self(*arguments, at=at, cwd=cwd, environment=environment, filtering=filtering)
        return [name for name in answer.decode(errors="surrogateescape").split("\0") if name]

    def commit_of(self, name: str, *, at: At) -> str | None:
        """Return the id of the commit that `name` stands for, None where there is none."""
        try:
            found = self.line(
                "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}",
                at=at,
            )  # fmt: skip
        except GitFailed as failed:
            if failed.status is None:
                raise
            return None
        return found or None

    def _filters_off(self, at: At) -> list[tuple[str, str]]:
        """Return what turns off every filter that the repository's configuration names now."""
        keys = self.names("config", "--list", "--name-only", "-z", at=at)
        found = filter(None, map(_FILTER.fullmatch, keys))
        drivers = dict.fromkeys(match[1] for match in found)
        return [
            (f"filter.{driver}.{key}", value)
            for driver in drivers
            for key, value in _FILTER_OFF
        ]


def _on_the_command_level(settings: Sequence[tuple[str, str]]) -> dict[str, str]:
    said = {"GIT_CONFIG_COUNT": str(len(settings))}
    for place, (key, value) in enumerate(settings):
        said[f"GIT_CONFIG_KEY_{place}"] = key
        said[f"GIT_CONFIG_VALUE_{place}"] = value
    return said


def _limits(seconds: float, head_bytes: int) -> Limits:
    return Limits(
        timeout_seconds=seconds,
        # Told to end, Git takes back its locks; killed, it leaves them in the repository.
        grace_seconds=bounds.LAUNCHER_SECONDS / 2,
        cpu_seconds=int(seconds) + 1,
        data_bytes=bounds.PROGRAM_DATA_BYTES,
        file_bytes=64 * bounds.GIB,
        open_files=bounds.PROGRAM_OPEN_FILES,
        tree_bytes=bounds.PROGRAM_TREE_BYTES,
        tree_processes=bounds.PROGRAM_TREE_PROCESSES,
        disk_left_bytes=0,
        head_bytes=head_bytes,
        tail_bytes=0,
        output_bytes=bounds.PROGRAM_OUTPUT_BYTES,
    )


def git_program() -> str:
    """Return the path of a Git that is new enough.

    Raises:
        WorkspaceRefused: there is none on this machine; the log says which was found.
    """
    path, version = _git_here(confinement.search_path(None))
    if path and version >= bounds.GIT_VERSION:
        return path
    found = ".".join(map(str, version)) if path else "none"
    needed = ".".join(map(str, bounds.GIT_VERSION))
    log.error("coding.git_unusable", version=found, reason=f"git {needed} or newer is needed")
    raise WorkspaceRefused(
        ErrorCode.WORKSPACE_FAILED, f"Git {needed} or newer is needed on the worker's machine."
    )


@functools.cache
def _git_here(search_path: str) -> tuple[str, tuple[int, ...]]:
    path = shutil.which("git", path=search_path)
    if path is None:
        return "", ()
    try:
        answer = subprocess.run(  # noqa: S603 - a program that the system installed
            [path, "--version"],
            env={"PATH": search_path, "LC_ALL": "C"},
            cwd="/",
            capture_output=True,
            timeout=bounds.GIT_SECONDS,
            check=False,
            text=True,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return path, ()
    match = re.search(r"(\d+)\.(\d+)", answer)
    return path, tuple(map(int, match.groups())) if match else ()


def decoded(name: str) -> str:
    """Return a name of Git's that may hold any bytes as text that can be stored."""
    return os.fsencode(name).decode(errors="replace")


def shown(name: str) -> str:
    """Return the name of a file as one line."""
    return "".join(
        character if character.isprintable() else "\ufffd" for character in decoded(name)
    )
