"""Calling one tool: its time and result are bounded, and nothing it does blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from django.db import connections

from recovery.bounds import cut_utf8, storable
from recovery.errors import ErrorCode
from recovery.executor import in_thread
from turns import bounds
from turns.models import ToolStep
from turns.tools.registry import Invocation, Result, State, Tool, ToolFailed

log = structlog.get_logger()

ValueT = TypeVar("ValueT")

# A thread that blocks cannot be ended, only left behind; past this many no further one is
# started.
BLOCKED_THREADS_MAX: Final = 64
# A whole result up to this size is cut when it is stored; more is a tool out of control.
CUTTABLE_RESULT_BYTES: Final = 32 * bounds.TOOL_RESULT_MAX_BYTES
CUT_MARK: Final = "\n[cut: the result was {size} bytes]"
UNKNOWN_EFFECT: Final = "It is not known whether this took effect. Do not repeat it unasked."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, ready to be committed."""

    state: ToolStep.State
    result: str
    error_code: ErrorCode | None = None


def failure(failed: ToolFailed) -> Outcome:
    """Return the outcome of a call that did not do what was asked."""
    return Outcome(failed.state, failed.result, failed.code)


async def invoke(tool: Tool[Any], invocation: Invocation[Any]) -> Outcome:
    """Call `tool` once and return how it ended; it never raises what the tool raised."""
    try:
        async with asyncio.timeout(tool.timeout_seconds):
            text, fits = await _taken(tool, invocation)
    except TimeoutError:
        return failure(_timed_out(tool))
    except ToolFailed as failed:
        return failure(failed)
    except Exception as error:
        log.error("tool.raised", tool=tool.name, exc_info=error)
        return failure(_broken(tool))
    if not fits:
        return Outcome(State.FAILED, text, ErrorCode.TOOL_RESULT_TOO_LARGE)
    return Outcome(State.SUCCEEDED, text)


class _Taken:
    """A result in pieces, put together until it is larger than the bound."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str) -> bool:
        """Keep `piece`; return whether more may come."""
        text = storable(piece)
        self._size += len(text.encode())
        self._pieces.append(cut_utf8(text, bounds.TOOL_RESULT_MAX_BYTES))
        return self._size <= bounds.TOOL_RESULT_MAX_BYTES

    def close(self) -> tuple[str, bool]:
        """Return the text, marked where it was cut, and whether it fits."""
        text = "".join(self._pieces)
        if self._size <= bounds.TOOL_RESULT_MAX_BYTES:
            return text, True
        return _cut(text, f"more than {bounds.TOOL_RESULT_MAX_BYTES}"), False


def _whole(text: str) -> tuple[str, bool]:
    """Return a result that came in one piece, and whether it may be stored, cut if need be."""
    size = len(text.encode(errors="replace"))
    if size <= CUTTABLE_RESULT_BYTES:
        return text, True
    return _cut(storable(text[: bounds.TOOL_RESULT_MAX_BYTES]), str(size)), False


def _cut(text: str, size: str) -> str:
    mark = CUT_MARK.format(size=size)
    return cut_utf8(text, bounds.TOOL_RESULT_MAX_BYTES - len(mark)) + mark


def _in_pieces(pieces: Iterable[str]) -> tuple[str, bool]:
    taken = _Taken()
    for piece in pieces:
        if not taken.add(piece):
            break
    return taken.close()


async def _taken(tool: Tool[Any], invocation: Invocation[Any]) -> tuple[str, bool]:
    match tool.runs:
        case "in_database_thread":
            return await in_thread(_call, tool, invocation)
        case "in_own_thread":
            return await in_own_thread(lambda: _call(tool, invocation))
        case "on_loop":
            result = tool.call(invocation)
            settled: Result = await result if inspect.isawaitable(result) else result
            if isinstance(settled, str):
                return _whole(settled)
            if not isinstance(settled, AsyncIterable):
                return _in_pieces(settled)
            taken = _Taken()
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(settled, "aclose"):
                    stack.push_async_callback(settled.aclose)
                async for piece in settled:
                    if not taken.add(piece):
                        break
            return taken.close()


def _call(tool: Tool[Any], invocation: Invocation[Any]) -> tuple[str, bool]:
    result = tool.call(invocation)
    if isinstance(result, str):
        return _whole(result)
    if not isinstance(result, Iterable):
        raise TypeError(f"{tool.name} runs in a thread and returned something to await")
    return _in_pieces(result)


def _timed_out(tool: Tool[Any]) -> ToolFailed:
    if tool.reads_only:
        return ToolFailed(ErrorCode.TOOL_TIMEOUT)
    return ToolFailed(ErrorCode.OUTCOME_UNKNOWN, state=State.INTERRUPTED, result=UNKNOWN_EFFECT)


def _broken(tool: Tool[Any]) -> ToolFailed:
    if tool.reads_only:
        return ToolFailed(ErrorCode.TOOL_FAILED)
    return ToolFailed(
        ErrorCode.TOOL_FAILED, result=f"{ErrorCode.TOOL_FAILED.label} {UNKNOWN_EFFECT}"
    )


_blocked = threading.BoundedSemaphore(BLOCKED_THREADS_MAX)


async def in_own_thread(function: Callable[[], ValueT]) -> ValueT:
    """Call `function` in a thread that may block as long as it likes, even past our own end."""
    if not _blocked.acquire(blocking=False):
        raise ToolFailed(ErrorCode.TOOL_FAILED, state=State.UNAVAILABLE)
    loop = asyncio.get_running_loop()
    settled: asyncio.Future[ValueT] = loop.create_future()

    def settle(value: ValueT | None, error: BaseException | None) -> None:
        if settled.done():  # cancelled, or timed out: nobody waits for this any more
            return
        if error is not None:
            settled.set_exception(error)
        else:
            settled.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value, error = None, None
        try:
            value = function()
        except BaseException as raised:  # noqa: BLE001 - handed to the caller
            error = raised
        finally:
            connections.close_all()
            _blocked.release()
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    try:
        threading.Thread(target=work, name="blocking tool", daemon=True).start()
    except RuntimeError:  # the machine gives no more threads
        _blocked.release()
        raise ToolFailed(ErrorCode.TOOL_FAILED, state=State.UNAVAILABLE) from None
    return await settled
