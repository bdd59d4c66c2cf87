"""`run_checks` and `run_command`: programs of the repository, under guard.

What a program does outside the worktree is prevented or put back, but the worktree is its to
change in ways nobody can undo; so both are external effects, which are never started twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from recovery.errors import ErrorCode
from turns.tools.registry import Arguments, Effect, Invocation, State, Tool, ToolFailed
from turns.tools.runner import in_own_thread
from work.coding import bounds, confinement, processtree
from work.coding.git import shown
from work.coding.orders import End, Ended
from work.coding.tools import saying

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

_SECONDS: Final = (
    bounds.PROGRAM_SECONDS + bounds.PROGRAM_GRACE_SECONDS + processtree.KILL_SECONDS + 30
)
_WORD_MAX_CHARS: Final = 8_192

_ENDED: Final = {
    End.TIMEOUT: (ErrorCode.TOOL_TIMEOUT, "was ended after {seconds} seconds"),
    End.OUTPUT: (ErrorCode.TOOL_RESULT_TOO_LARGE, "was ended: it said too much"),
    End.MEMORY: (ErrorCode.TOOL_FAILED, "was ended: it took too much memory"),
    End.PROCESSES: (ErrorCode.TOOL_FAILED, "was ended: it started too many processes"),
    End.DISK: (ErrorCode.TOOL_FAILED, "was ended: the disk is nearly full"),
    End.STOPPED: (ErrorCode.CANCELLED, "was stopped"),
    End.SUPERSEDED: (ErrorCode.RUNTIME_LOST, "was ended: its working copy is lost"),
}


class RunChecks(Arguments):
    """Which check."""

    name: Annotated[str, Field(max_length=64)]


class RunCommand(Arguments):
    """A program and its arguments. There is no shell unless the program is one."""

    argv: Annotated[
        list[Annotated[str, Field(max_length=_WORD_MAX_CHARS)]],
        Field(min_length=1, max_length=bounds.PROGRAM_WORDS),
    ]


def run_checks(workspace: Workspace) -> Tool[RunChecks]:
    """Return the tool, with the checks of the job's computer."""
    checks = workspace.authority.checks

    async def call(invocation: Invocation[RunChecks]) -> str:
        """Return what the check said."""
        words = checks.get(invocation.arguments.name)
        if words is None:
            known = ", ".join(sorted(checks)) or "none"
            raise ToolFailed(
                ErrorCode.COMMAND_REFUSED,
                state=State.REFUSED,
                result=f"There is no such check. There are: {known}.",
            )
        return await _run(workspace, words)

    return Tool(
        name="run_checks",
        description=(
            "Run one of the checks that the person allows for this repository: "
            f"{', '.join(sorted(checks)) or 'there are none'}."
        ),
        arguments=RunChecks,
        effect=Effect.EXTERNAL,
        call=call,
        timeout_seconds=_SECONDS,
    )


def run_command(workspace: Workspace) -> Tool[RunCommand]:
    """Return the tool."""

    async def call(invocation: Invocation[RunCommand]) -> str:
        """Return what the command said."""
        words = invocation.arguments.argv
        if not words[0] or any("\0" in word for word in words):
            raise ToolFailed(ErrorCode.INVALID_TOOL_ARGUMENTS, result="That names no program.")
        return await _run(workspace, words)

    return Tool(
        name="run_command",
        description=(
            "Run a program in the working copy: its words, without a shell. It has no network, "
            "and no terminal."
        ),
        arguments=RunCommand,
        effect=Effect.EXTERNAL,
        call=call,
        timeout_seconds=_SECONDS,
    )


async def _run(workspace: Workspace, words: list[str]) -> str:
    if not confinement.may_run_programs():
        raise ToolFailed(
            ErrorCode.COMMAND_REFUSED,
            state=State.UNAVAILABLE,
            result="This machine cannot confine programs, so none is run.",
        )
    program = workspace.program(words)
    try:
        with saying.told():
            ended, touched = await in_own_thread(partial(workspace.run, program))
    except asyncio.CancelledError:
        # The thread sees it to its end; nobody waits for that.
        program.stop()
        raise
    return told(ended, touched)


def told(ended: Ended, touched: list[str]) -> str:
    """Return what the model is told of a program that ended well; raise it otherwise."""
    lines = []
    if touched:
        lines.append(
            "It changed the repository outside the job's branch, which was put back: "
            + ", ".join(map(shown, touched[: bounds.CHANGED_FILES_NAMED]))
        )
    lines.append(_how(ended))
    lines.extend(_left(ended))
    lines.append(saying.output_text(ended.output) or "[it said nothing]")
    result = saying.fitting("\n".join(lines))
    if touched:
        raise ToolFailed(ErrorCode.REPOSITORY_TOUCHED, result=result)
    if ended.end in _ENDED:
        raise ToolFailed(_ENDED[ended.end][0], result=result)
    if ended.exit_status != 0:
        raise ToolFailed(ErrorCode.TOOL_FAILED, result=result)
    return result


def _left(ended: Ended) -> Iterator[str]:
    if ended.left_running > ended.survivors:
        count = ended.left_running - ended.survivors
        yield f"[{count} processes it had left running were ended]"
    if ended.survivors:
        yield f"[{ended.survivors} processes it had started could not be ended]"


def _how(ended: Ended) -> str:
    if ended.end == End.NOT_STARTED:
        return f"[it could not be started: {os.strerror(ended.error_number)}]"
    if ended.end in _ENDED:
        said = _ENDED[ended.end][1].format(seconds=bounds.PROGRAM_SECONDS)
        return f"[it {said}]"
    if ended.exit_status is not None and ended.exit_status < 0:
        return f"[it was ended by {signal.Signals(-ended.exit_status).name}]"
    return f"[exit status {ended.exit_status}]"
