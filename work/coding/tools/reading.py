"""`list_files` and `read_file`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

from pydantic import Field

from recovery.counting import counted
from recovery.errors import ErrorCode
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed
from work.coding import bounds
from work.coding.git import shown
from work.coding.paths import Entry, Kind
from work.coding.tools import saying

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

Path = Annotated[
    str,
    Field(
        max_length=bounds.PATH_MAX_BYTES,
        description="relative to the top of the repository",
    ),
]
_TEXT_MAX_BYTES: Final = 48 * 1024
_LOOKED_AT_BYTES: Final = 8 * 1024


class ListFiles(Arguments):
    """Which directory; empty for the top."""

    path: Path = ""
    recursive: Annotated[
        bool, Field(description="all files below, without those Git ignores")
    ] = False


class ReadFile(Arguments):
    """Which file, and which of its lines."""

    path: Path
    first_line: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    lines: Annotated[int, Field(ge=1, le=bounds.READ_LINES)] = bounds.READ_LINES


def tools(workspace: Workspace) -> tuple[Tool[Any], ...]:
    """Return the tools, at work in this workspace."""

    def list_files(invocation: Invocation[ListFiles]) -> str:
        """Return the files, one a line."""
        path = invocation.arguments.path
        with saying.told():
            workspace.require_ours()
            if not invocation.arguments.recursive:
                entries = [_line(entry) for entry in workspace.tree.entries(path)]
            else:
                below = "/".join(workspace.tree.names(path))
                workspace.tree.entries(path)  # it is there, and may be looked into
                entries = [
                    name
                    for name in workspace.branch.files()
                    if not below or name.startswith(f"{below}/")
                ]
        return saying.fitting(
            saying.listing(entries, most=bounds.LISTED_ENTRIES) or "[nothing]"
        )

    def read_file(invocation: Invocation[ReadFile]) -> str:
        """Return the lines, behind one that says which they are."""
        asked = invocation.arguments
        with saying.told():
            workspace.require_ours()
            with workspace.tree.reading(asked.path) as file:
                return _read(file, asked)

    return (
        Tool(
            name="list_files",
            description="List a directory of the repository, or all files below it.",
            arguments=ListFiles,
            effect=Effect.READ,
            call=list_files,
            runs="in_own_thread",
            timeout_seconds=bounds.GIT_SECONDS + 30,
        ),
        Tool(
            name="read_file",
            description=(
                "Read a text file of the repository. The first line of the answer says which "
                "lines follow."
            ),
            arguments=ReadFile,
            effect=Effect.READ,
            call=read_file,
            runs="in_own_thread",
            timeout_seconds=30,
        ),
    )


def _line(entry: Entry) -> str:
    match entry.kind:
        case Kind.FILE:
            return f"{entry.name}  {counted(entry.size, 'byte')}"
        case Kind.DIRECTORY:
            return f"{entry.name}/"
        case _:
            return f"{entry.name}  [{entry.kind.value}]"


def _read(file: BinaryIO, asked: ReadFile) -> str:
    data = file.read(bounds.READ_FILE_MAX_BYTES + 1)
    if b"\0" in data[:_LOOKED_AT_BYTES]:
        return f"[{shown(asked.path)} is not text: {_size(data)}]"
    is_cut = len(data) > bounds.READ_FILE_MAX_BYTES
    lines = data[: bounds.READ_FILE_MAX_BYTES].splitlines(keepends=True)
    wanted = lines[asked.first_line - 1 : asked.first_line - 1 + asked.lines]
    if lines and not wanted:
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS,
            result=f"The file has {counted(len(lines), 'line')}.",
        )
    taken: list[str] = []
    room = _TEXT_MAX_BYTES
    for line in wanted:
        text = _text(line)
        room -= len(text.encode())
        if room < 0:
            break
        taken.append(text)
    last = asked.first_line + len(taken) - 1
    of = f"more than {len(lines)}" if is_cut else str(len(lines))
    said = f"[lines {asked.first_line} to {last} of {of}]\n" if lines else "[empty]"
    return saying.fitting(said + "".join(taken))


def _size(data: bytes) -> str:
    if len(data) > bounds.READ_FILE_MAX_BYTES:
        return f"more than {bounds.READ_FILE_MAX_BYTES} bytes"
    return counted(len(data), "byte")


def _text(line: bytes) -> str:
    if len(line) <= bounds.READ_LINE_MAX_BYTES:
        return line.decode(errors="replace")
    kept = line[: bounds.READ_LINE_MAX_BYTES].decode(errors="ignore")
    return f"{kept} [cut: the line has {len(line)} bytes]\n"
