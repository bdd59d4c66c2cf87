"""`show_changes` and `commit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from recovery.counting import counted
from recovery.errors import ErrorCode
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed
from work.coding import bounds
from work.coding.changes import Commit
from work.coding.tools import saying
from work.coding.tools.reading import Path

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

_SECONDS: Final = bounds.GIT_STAGE_SECONDS + 2 * bounds.GIT_SECONDS


class ShowChanges(Arguments):
    """Since when, and below which path."""

    since: Literal["start", "commit"] = "start"
    path: Path = ""


class CommitChanges(Arguments):
    """What to say about the changes."""

    message: Annotated[str, Field(min_length=1, max_length=bounds.COMMIT_MESSAGE_MAX_BYTES)]


def show_changes(workspace: Workspace) -> Tool[ShowChanges]:
    """Return the tool, at work in this workspace."""

    def call(invocation: Invocation[ShowChanges]) -> str:
        """Return the changes as a diff."""
        asked = invocation.arguments
        with saying.told():
            workspace.require_ours()
            text, is_cut = workspace.branch.difference(
                since_start=asked.since == "start",
                path=workspace.tree.below(asked.path, may_be_gone=True),
            )
        if not text:
            return "[nothing has changed]"
        return saying.fitting(text + saying.CUT_MARK if is_cut else text)

    return Tool(
        name="show_changes",
        description=(
            "Show what has changed in the repository since the job started, or since its last "
            "commit: a summary, then the differences."
        ),
        arguments=ShowChanges,
        effect=Effect.READ,
        call=call,
        runs="in_own_thread",
        timeout_seconds=_SECONDS,
    )


def commit(workspace: Workspace) -> Tool[CommitChanges]:
    """Return the tool, at work in this workspace."""

    def call(invocation: Invocation[CommitChanges]) -> str:
        """Return the commit's id and what is in it."""
        message = _message(invocation.arguments.message)
        with saying.told(), workspace.changing() as still_ours:
            done = workspace.branch.commit(message, before=still_ours)
        return saying.fitting(_told(done, workspace.branch_name))

    return Tool(
        name="commit",
        description=(
            "Commit every change in the working copy to the job's branch. What is not "
            "committed at the end of the job is committed then."
        ),
        arguments=CommitChanges,
        effect=Effect.REVERSIBLE,
        call=call,
        runs="in_own_thread",
        timeout_seconds=_SECONDS,
    )


def _message(text: str) -> str:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not size or not text.strip() or "\0" in text:
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS, result="`message` must say something."
        )
    if size > bounds.COMMIT_MESSAGE_MAX_BYTES:
        raise ToolFailed(ErrorCode.INVALID_TOOL_ARGUMENTS, result="`message` is too long.")
    return text


def _told(done: Commit, branch: str) -> str:
    if done.files:
        lines = [
            f"Committed {done.id} on {branch}: {counted(len(done.files), 'file')}.",
            saying.listing(done.files, most=bounds.CHANGED_FILES_NAMED),
        ]
    else:
        lines = [f"Nothing has changed since {done.id}, so there is no new commit."]
    if done.left_out:
        lines.append("Left out, since Git cannot keep them here:")
        lines.append(saying.listing(done.left_out, most=bounds.CHANGED_FILES_NAMED))
    return "\n".join(lines)
