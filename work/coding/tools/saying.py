"""What a tool tells the model: text that can be stored, and is cut with a mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from recovery.bounds import cut_utf8, storable
from recovery.errors import ErrorCode
from turns.tools.registry import State, ToolFailed
from work.coding import bounds
from work.coding.errors import WorkspaceLost
from work.coding.git import GitFailed, shown
from work.coding.orders import Stream

log = structlog.get_logger(__name__)

LEFT_OUT_MARK: Final = "\n[... {count} bytes are left out here ...]\n"
CUT_MARK: Final = "\n[cut: there is more]"
# Colours and cursor movements of programs that take a pipe for a terminal; other controls.
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def output_text(stream: Stream) -> str:
    """Return what a program said, its middle left out where it said much."""
    mark = LEFT_OUT_MARK.format(count=stream.left_out) if stream.left_out else ""
    return f"{_plain(stream.head)}{mark}{_plain(stream.tail)}"


def _plain(data: bytes) -> str:
    text = data.decode(errors="replace").replace("\r\n", "\n")
    return _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r", "\n"))


def fitting(text: str, *, limit_bytes: int = bounds.TOOL_RESULT_MAX_BYTES) -> str:
    """Return the text as a result that is stored whole."""
    text = storable(text)
    if len(text.encode()) <= limit_bytes:
        return text
    return cut_utf8(text, limit_bytes - len(CUT_MARK)) + CUT_MARK


def listing(names: Sequence[str], *, most: int) -> str:
    """Return the names, one a line, and how many more there are."""
    lines = [shown(name) for name in names[:most]]
    if len(names) > most:
        lines.append(f"[and {len(names) - most} more]")
    return "\n".join(lines)


@contextmanager
def told() -> Iterator[None]:
    """Turn what went wrong around the worktree into what the model is told."""
    try:
        yield
    except GitFailed as failed:
        if failed.status is not None:  # otherwise what ran it has said so
            log.warning(
                "coding.program_failed",
                tool="git",
                action=failed.verb,
                error_code=ErrorCode.TOOL_FAILED,
                exit_status=failed.status,
            )
        raise ToolFailed(ErrorCode.TOOL_FAILED, result="Git could not do this.") from None
    except WorkspaceLost:
        # Nobody will read it: nothing more is asked of the model.
        raise ToolFailed(ErrorCode.RUNTIME_LOST, state=State.INTERRUPTED) from None
