"""`search_files`."""

from __future__ import annotations

import sys
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Final
from uuid import uuid4

import structlog
from pydantic import Field

from recovery.errors import ErrorCode
from turns.tools.registry import Arguments, Effect, Invocation, Tool, ToolFailed
from work.coding import bounds, searcher
from work.coding.orders import End, Ended, Limits
from work.coding.tools import saying
from work.coding.tools.reading import Path

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

log = structlog.get_logger(__name__)

_OUTPUT_BYTES: Final = 56 * 1024
LIMITS: Final = Limits(
    timeout_seconds=bounds.SEARCH_SECONDS,
    grace_seconds=0.0,
    cpu_seconds=bounds.SEARCH_SECONDS + 1,
    data_bytes=bounds.GIB,
    file_bytes=0,
    open_files=256,
    tree_bytes=bounds.GIB,
    tree_processes=4,
    disk_left_bytes=0,
    head_bytes=_OUTPUT_BYTES,
    tail_bytes=0,
    output_bytes=bounds.PROGRAM_OUTPUT_BYTES,
)
PROGRAM: Final = FilePath(searcher.__file__)
# What the interpreter and our own modules are read from.
STARTED_FROM: Final = (*map(FilePath, (sys.prefix, sys.base_prefix)), PROGRAM.parent)


class SearchFiles(Arguments):
    """What to look for, and where."""

    text: Annotated[str, Field(min_length=1, max_length=bounds.SEARCH_PATTERN_MAX_CHARS)]
    regex: Annotated[
        bool, Field(description="`text` is a regular expression, tried on each line")
    ] = False
    ignore_case: bool = False
    path: Path = ""


def tool(workspace: Workspace) -> Tool[SearchFiles]:
    """Return the tool, at work in this workspace."""

    def call(invocation: Invocation[SearchFiles]) -> str:
        """Return the hits, one a line: path, number of the line, the line."""
        asked = invocation.arguments
        with saying.told():
            workspace.require_ours()
            below = workspace.tree.below(asked.path)
            names = [
                name
                for name in workspace.branch.files()
                if not below or name == below or name.startswith(f"{below}/")
            ]
            said = workspace.staging / uuid4().hex
            said.write_bytes(
                searcher.Search(
                    root=str(workspace.root),
                    names=names,
                    pattern=asked.text,
                    is_regex=asked.regex,
                    ignore_case=asked.ignore_case,
                    hits=bounds.SEARCH_HITS,
                    line_bytes=bounds.SEARCH_LINE_MAX_BYTES,
                    file_bytes=bounds.SEARCH_FILE_MAX_BYTES,
                ).encode()
            )
            command = [sys.executable, "-I", "-S", str(PROGRAM), str(said)]
            try:
                ended = workspace.read_with(workspace.searcher(command, LIMITS, STARTED_FROM))
            finally:
                said.unlink(missing_ok=True)
        return _told(ended, workspace.job_id)

    return Tool(
        name="search_files",
        description=(
            "Find the lines of the repository's text files that hold a text, or that a regular "
            "expression matches. Files that Git ignores are not looked at."
        ),
        arguments=SearchFiles,
        effect=Effect.READ,
        call=call,
        runs="in_own_thread",
        timeout_seconds=bounds.SEARCH_SECONDS + bounds.GIT_SECONDS + 30,
    )


def _told(ended: Ended, job_id: int) -> str:
    if ended.end == End.TIMEOUT:
        raise ToolFailed(
            ErrorCode.TOOL_TIMEOUT, result="The search takes too long. Use a simpler pattern."
        )
    if ended.exit_status == searcher.NOT_A_PATTERN:
        raise ToolFailed(
            ErrorCode.INVALID_TOOL_ARGUMENTS, result="`text` is not a regular expression."
        )
    if ended.end != End.EXITED or ended.exit_status != 0:
        if ended.end not in {End.STOPPED, End.SUPERSEDED}:
            log.warning(
                "coding.program_failed",
                job_id=job_id,
                tool="search_files",
                error_code=ErrorCode.TOOL_FAILED,
                exit_status=ended.exit_status,
                reason=ended.end.value,
            )
        raise ToolFailed(ErrorCode.TOOL_FAILED)
    text = saying.output_text(ended.output)
    return saying.fitting(text + saying.CUT_MARK if ended.output.left_out else text)
