"""Checks and commands of a coding job: what the model is told, and when they end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recovery.errors import ErrorCode
from tests.support.waiting import wait_until
from tests.work.coding.repositories import WRONG, call, ended, shell
from turns.bounds import TOOL_RESULT_MAX_BYTES
from turns.tools.registry import State, ToolFailed
from work.coding import bounds, confinement
from work.coding.confinement import Hold
from work.coding.orders import End, Ended, Stream
from work.coding.tools import running
from work.coding.workspace import Workspace


async def test_a_check_that_fails_is_a_failed_step_that_says_why(workspace: Workspace) -> None:
    run = await call(workspace, "run_checks", name="fails")
    assert ended(run) == (State.FAILED, ErrorCode.TOOL_FAILED)
    assert run.result == "[exit status 3]\nwrong\n"


async def test_a_command_is_words_and_not_a_line(workspace: Workspace) -> None:
    run = await call(workspace, "run_command", argv=["echo", "$HOME; touch x", "*"])
    assert run.result == "[exit status 0]\n$HOME; touch x *\n"
    assert ended(await call(workspace, "run_command", argv=["a\0b"])) == WRONG
    missing = await call(workspace, "run_command", argv=["no-such-program"])
    assert missing.result.startswith("[it could not be started: No such file or directory]")


async def test_output_is_made_plain(workspace: Workspace) -> None:
    run = await shell(workspace, "printf '\\033[1;31mred\\033[0m\\007\\r\\nnext\\0\\377'")
    assert run.result == "[exit status 0]\nred\nnext\ufffd"


async def test_of_much_output_both_ends_are_told(workspace: Workspace) -> None:
    """failure H39, H40, H41: the cut is marked, on whole characters, within the bound."""
    run = await shell(workspace, "echo begin; yes ää | head -c 50M; echo; echo end")
    assert run.state == State.SUCCEEDED
    assert run.result.startswith("[exit status 0]\nbegin\nää\n")
    assert run.result.endswith("\nend\n")
    kept = bounds.PROGRAM_HEAD_BYTES + bounds.PROGRAM_TAIL_BYTES
    size = 50 * 1024 * 1024 + len("begin\n\nend\n")
    assert f"[... {size - kept} bytes are left out here ...]" in run.result
    assert len(run.result.encode()) <= TOOL_RESULT_MAX_BYTES


async def test_output_that_grows_when_it_is_made_text_fits_all_the_same(
    workspace: Workspace,
) -> None:
    run = await shell(workspace, "head -c 60000 /dev/zero | tr '\\0' '\\377'")
    assert run.state == State.SUCCEEDED
    assert len(run.result.encode()) <= TOOL_RESULT_MAX_BYTES


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (End.TIMEOUT, ErrorCode.TOOL_TIMEOUT),
        (End.OUTPUT, ErrorCode.TOOL_RESULT_TOO_LARGE),
        (End.MEMORY, ErrorCode.TOOL_FAILED),
    ],
)
async def test_a_program_that_was_ended_is_a_failed_step(end: End, code: ErrorCode) -> None:
    with pytest.raises(ToolFailed) as failed:
        running.told(Ended(end, output=Stream(b"so far", b"", 6)), [])
    assert (failed.value.state, failed.value.code) == (State.FAILED, code)
    assert failed.value.result.endswith("\nso far")


@pytest.mark.parametrize(
    ("end", "left_running", "survivors", "said"),
    [
        (End.EXITED, 0, 0, []),
        (End.EXITED, 3, 0, ["[3 processes it had left running were ended]"]),
        (
            End.EXITED, 3, 1,
            ["[2 processes it had left running were ended]",
             "[1 processes it had started could not be ended]"],
        ),
        (End.TIMEOUT, 0, 2, ["[2 processes it had started could not be ended]"]),
    ],
)  # fmt: skip
def test_what_could_not_be_ended_is_not_said_to_have_ended(
    end: End, left_running: int, survivors: int, said: list[str]
) -> None:
    ended = Ended(end, exit_status=0, left_running=left_running, survivors=survivors)
    assert list(running._left(ended)) == said


async def test_a_cancelled_call_ends_its_program_at_once(workspace: Workspace) -> None:
    """failure H29: the running process group is signalled and ends."""
    running = asyncio.ensure_future(
        shell(workspace, "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done")
    )
    pid = workspace.root / "pid"
    await asyncio.to_thread(wait_until, lambda: pid.exists() and pid.read_text(), "it runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    process = Path("/proc", pid.read_text().strip())
    await asyncio.to_thread(wait_until, lambda: not process.exists(), "it has ended")


async def test_where_nothing_can_hold_a_program_none_is_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "hold", lambda: Hold.NONE)
    run = await shell(workspace, "touch ran")
    assert ended(run) == (State.UNAVAILABLE, ErrorCode.COMMAND_REFUSED)
    assert not (workspace.root / "ran").exists()
    # reading and changing do without
    assert (await call(workspace, "search_files", text="hello")).state == State.SUCCEEDED
    assert (await call(workspace, "commit", message="x")).state == State.SUCCEEDED
