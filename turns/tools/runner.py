"""Calling one tool: its time and its result are bounded, and nothing it does blocks the
loop.
"""

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
# A result up to this size is cut and marked; more than that is a tool out of control.
CUTTABLE_RESULT_BYTES: Final = 32 * bounds.TOOL_RESULT_MAX_BYTES
UNKNOWN_EFFECT: Final = "It is not known whether this took effect. Do not repeat it unasked."


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, ready to be committed. `size` is the result's bytes before any cut."""

    state: ToolStep.State
    result: str
    size: int
    error_code: ErrorCode | None = None


def failure(failed: ToolFailed) -> Outcome:
    """Return the outcome of a call that did not do what was asked."""
    text, size, _ = bounded(failed.result)
    return Outcome(failed.state, text, size, failed.code)


async def invoke(tool: Tool[Any], invocation: Invocation[Any]) -> Outcome:
    """Call `tool` once and return how it ended; it never raises what the tool raised."""
    try:
        async with asyncio.timeout(tool.timeout_seconds):
            text, size, complete = await _taken(tool, invocation)
    except TimeoutError:
        return failure(_timed_out(tool))
    except ToolFailed as failed:
        return failure(failed)
    except Exception as error:
        log.error("tool.raised", tool=tool.name, exc_info=error)
        return failure(_broken(tool))
    if not complete or size > CUTTABLE_RESULT_BYTES:
        return Outcome(State.FAILED, text, size, ErrorCode.TOOL_RESULT_TOO_LARGE)
    return Outcome(State.SUCCEEDED, text, size)


def bounded(result: str | Iterable[str]) -> tuple[str, int, bool]:
    """Return the result within its bound, its size before the cut, and whether it was read
    whole.

    What was cut says so in plain words at its end, with the original size. Pieces are read
    until the bound: an endless result ends there.
    """
    taken = _Taken()
    for piece in [result] if isinstance(result, str) else result:
        if not taken.add(piece):
            break
    return taken.close(whole=isinstance(result, str))


class _Taken:
    """Text put together until it is larger than the bound."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, piece: str) -> bool:
        """Keep `piece`; return whether more may come."""
        text = storable(piece)
        self._size += len(text.encode())
        self._pieces.append(cut_utf8(text, bounds.TOOL_RESULT_MAX_BYTES + 1))
        return self._size <= bounds.TOOL_RESULT_MAX_BYTES

    def close(self, *, whole: bool) -> tuple[str, int, bool]:
        """Return the text with its mark, its size, and whether nothing was left unread."""
        text = "".join(self._pieces)
        if self._size <= bounds.TOOL_RESULT_MAX_BYTES:
            return text, self._size, True
        more = "" if whole else "more than "
        mark = f"\n[cut: the whole result is {more}{self._size} bytes]"
        room = bounds.TOOL_RESULT_MAX_BYTES - len(mark)
        return cut_utf8(text, room) + mark, self._size, whole


async def _taken(tool: Tool[Any], invocation: Invocation[Any]) -> tuple[str, int, bool]:
    match tool.runs:
        case "in_database_thread":
            return await in_thread(_call_and_take, tool, invocation)
        case "in_own_thread":
            return await _in_own_thread(lambda: _call_and_take(tool, invocation))
        case "on_loop":
            result = tool.call(invocation)
            settled: Result = await result if inspect.isawaitable(result) else result
            if not isinstance(settled, AsyncIterable):
                return bounded(settled)
            taken = _Taken()
            async with contextlib.AsyncExitStack() as stack:
                if hasattr(settled, "aclose"):
                    stack.push_async_callback(settled.aclose)
                async for piece in settled:
                    if not taken.add(piece):
                        break
            return taken.close(whole=False)


def _call_and_take(tool: Tool[Any], invocation: Invocation[Any]) -> tuple[str, int, bool]:
    result = tool.call(invocation)
    if not isinstance(result, str | Iterable):
        raise TypeError(f"{tool.name} runs in a thread and returned something to await")
    return bounded(result)


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


async def _in_own_thread(function: Callable[[], ValueT]) -> ValueT:
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

    threading.Thread(target=work, name="blocking tool", daemon=True).start()
    return await settled
