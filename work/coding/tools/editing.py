"""`edit_file`, `write_file` and `delete_file`.

A file changes in one step, so a call whose worker died has happened or has not; reading shows
which. A commit keeps what was there before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from recovery.counting import counted
from recovery.errors import ErrorCode
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed
from work.coding import bounds
from work.coding.tools import saying
from work.coding.tools.reading import Path

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

_SECONDS: Final = 60

Text = Annotated[str, Field(max_length=bounds.TOOL_ARGUMENTS_MAX_BYTES)]


class EditFile(Arguments):
    """What to replace in which file."""

    path: Path
    old_text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=bounds.TOOL_ARGUMENTS_MAX_BYTES,
            description="exactly as it is in the file, where it must occur once",
        ),
    ]
    new_text: Text


class WriteFile(Arguments):
    """The whole of a file, new or not."""

    path: Path
    text: Text
    executable: Annotated[bool | None, Field(description="leave out to keep as it is")] = None


class DeleteFile(Arguments):
    """Which file."""

    path: Path


def tools(workspace: Workspace) -> tuple[Tool[Any], ...]:
    """Return the tools, at work in this workspace."""

    def edit_file(invocation: Invocation[EditFile]) -> str:
        """Replace the text; say where."""
        asked = invocation.arguments
        with saying.told(), workspace.changing() as still_ours:
            with workspace.tree.reading(asked.path) as file:
                before = file.read(bounds.EDIT_FILE_MAX_BYTES + 1)
            if len(before) > bounds.EDIT_FILE_MAX_BYTES:
                raise _wrong(f"The file is larger than {bounds.EDIT_FILE_MAX_BYTES} bytes.")
            old, new = _encoded(asked.old_text), _encoded(asked.new_text)
            _require_once(before, old)
            at = before.index(old)
            line = before[:at].count(b"\n") + 1
            after = before[:at] + new + before[at + len(old) :]
            workspace.tree.write(asked.path, after, before=still_ours)
        return f"Replaced at line {line}."

    def write_file(invocation: Invocation[WriteFile]) -> str:
        """Write the file; say whether it is new."""
        asked = invocation.arguments
        data = _encoded(asked.text)
        with saying.told(), workspace.changing() as still_ours:
            is_new = workspace.tree.write(
                asked.path, data, executable=asked.executable, before=still_ours
            )
        return f"{'Created' if is_new else 'Replaced'}: {counted(len(data), 'byte')}."

    def delete_file(invocation: Invocation[DeleteFile]) -> str:
        """Remove the file."""
        with saying.told(), workspace.changing() as still_ours:
            workspace.tree.delete(invocation.arguments.path, before=still_ours)
        return "Deleted."

    return (
        Tool(
            name="edit_file",
            description="Replace one piece of text in a file of the repository.",
            arguments=EditFile,
            effect=Effect.REVERSIBLE,
            call=edit_file,
            runs="in_own_thread",
            timeout_seconds=_SECONDS,
        ),
        Tool(
            name="write_file",
            description=(
                "Create a file of the repository, with the directories above it, or replace "
                "the whole of one. To change a part, use edit_file."
            ),
            arguments=WriteFile,
            effect=Effect.REVERSIBLE,
            call=write_file,
            runs="in_own_thread",
            timeout_seconds=_SECONDS,
        ),
        Tool(
            name="delete_file",
            description="Delete one file of the repository.",
            arguments=DeleteFile,
            effect=Effect.REVERSIBLE,
            call=delete_file,
            runs="in_own_thread",
            timeout_seconds=_SECONDS,
        ),
    )


def _encoded(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise _wrong("The text holds half of a character.") from None
    if b"\0" in data:
        raise _wrong("The text holds a NUL.")
    return data


def _require_once(before: bytes, old: bytes) -> None:
    count = before.count(old)
    if count == 1:
        return
    if count:
        raise _wrong(f"`old_text` occurs {count} times. Give more of what is around it.")
    if b"\r\n" in before and old.replace(b"\n", b"\r\n") in before:
        raise _wrong("`old_text` does not occur: the file's lines end with CR LF.")
    raise _wrong("`old_text` does not occur in the file.")


def _wrong(said: str) -> ToolFailed:
    return ToolFailed(ErrorCode.INVALID_TOOL_ARGUMENTS, result=said)
