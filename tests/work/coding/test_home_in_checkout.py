"""HOLDFAST_HOME lies inside the checkout where nobody says otherwise. There everything works as
it does elsewhere, and what lies in it is as closed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from recovery.errors import ErrorCode
from tests.work.coding.repositories import PersonsRepository, call, job_in, shell
from turns.tools.registry import State
from work.coding import confinement, processes
from work.coding.errors import WorkspaceRefused
from work.coding.orders import End, Ended
from work.coding.programs import Programs
from work.coding.tools import searching
from work.coding.workspace import Workspace

SECRET = "canary-77a0"


@pytest.fixture(autouse=True)
def home(settings: Settings) -> Iterator[Path]:
    """Make HOLDFAST_HOME where `script/up` does, beside that of the checkout itself."""
    default = processes.PROJECT / ".holdfast"
    was_there = default.exists()
    default.mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="test-", dir=default))
    (home / "secret_key").write_text(SECRET)
    settings.HOLDFAST_HOME = home
    yield home
    shutil.rmtree(home)
    if not was_there:
        with suppress(OSError):  # another run uses it by now
            default.rmdir()


@pytest.fixture
async def workspace(repository: PersonsRepository) -> AsyncIterator[Workspace]:
    workspace = await job_in(repository.top, checks={"ok": ["/bin/sh", "-c", "echo ok"]}).open()
    yield workspace
    await workspace.close()


async def test_every_tool_works(workspace: Workspace) -> None:
    await call(workspace, "write_file", path="src/new.py", text="hello = 1\n")
    await call(workspace, "edit_file", path="README.md", old_text="world", new_text="moon")
    found = await call(workspace, "search_files", text="hello")
    assert (found.state, found.result.splitlines()) == (
        State.SUCCEEDED,
        [
            "README.md:1:hello",
            "src/app.py:1:print('hello')",
            "src/new.py:1:hello = 1",
            "[3 hits in 3 files]",
        ],
    )
    for name, arguments in (
        ("list_files", {"recursive": True}),
        ("read_file", {"path": "README.md"}),
        ("show_changes", {}),
        ("run_checks", {"name": "ok"}),
        ("run_command", {"argv": ["/bin/sh", "-c", "touch made; ls; cat made"]}),
        ("commit", {"message": "Say moon"}),
        ("delete_file", {"path": "src/new.py"}),
    ):
        assert (await call(workspace, name, **arguments)).state == State.SUCCEEDED, name


async def test_no_program_reads_what_lies_in_it(workspace: Workspace, home: Path) -> None:
    looked = await shell(workspace, f"cat {home}/secret_key; ls {home} {home.parent}; true")
    assert SECRET not in looked.result
    assert "secret_key\n" not in looked.result
    for words in (["/bin/cat", str(home / "secret_key")], ["/bin/ls", str(home)]):
        said = workspace.read_with(
            workspace.searcher(words, searching.LIMITS, searching.STARTED_FROM)
        )
        assert said.exit_status != 0
        assert said.output.size == 0


async def test_a_job_may_work_for_the_repository_around_it(
    repository: PersonsRepository, settings: Settings
) -> None:
    repository.commit({".gitignore": "/.holdfast/\n"})
    home = repository.top / ".holdfast"
    home.mkdir()
    (home / "secret_key").write_text(SECRET)
    settings.HOLDFAST_HOME = home
    workspace = await job_in(repository.top).open()
    found = await call(workspace, "search_files", text="hello")
    assert found.result.splitlines()[-1] == "[2 hits in 3 files]"
    looked = await shell(workspace, f"cd {repository.top}; cat src/app.py .holdfast/*; git log")
    assert "print('hello')" in looked.result
    assert "A change" in looked.result
    assert SECRET not in looked.result
    await call(workspace, "write_file", path="answer", text="42\n")
    await workspace.close()
    assert repository.shown("holdfast/job-1:answer") == "42"
    with pytest.raises(WorkspaceRefused) as refused:
        await job_in(home, pk=2, roots=[repository.top]).open()
    assert refused.value.code == ErrorCode.OUTSIDE_ROOTS


def test_what_a_search_is_started_from_is_open_where_it_lies_inside(
    settings: Settings, tmp_path: Path
) -> None:
    settings.HOLDFAST_HOME = tmp_path
    code = tmp_path / "app" / "work"
    code.mkdir(parents=True)
    held_to = confinement.of_searcher(started_from=[code, tmp_path, Path("/")], own=[])
    assert held_to is not None
    assert [one for one in held_to.readable if one.startswith(str(tmp_path))] == [str(code)]


async def test_a_search_that_cannot_start_says_so_in_the_log(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PROGRAM", Path("/nowhere/searcher.py"))
    with capture_logs() as lines:
        found = await call(workspace, "search_files", text="hello")
    assert (found.state, found.error_code) == (State.FAILED, ErrorCode.TOOL_FAILED)
    assert lines == [
        {
            "event": "coding.program_failed",
            "log_level": "warning",
            "job_id": 1,
            "tool": "search_files",
            "error_code": ErrorCode.TOOL_FAILED,
            "exit_status": 2,
            "reason": "exited",
        }
    ]


async def test_a_git_that_fails_a_tool_says_so_in_the_log(workspace: Workspace) -> None:
    (Path(workspace._git_dir) / "index").write_text("broken")
    with capture_logs() as lines:
        found = await call(workspace, "search_files", text="hello")
    assert found.error_code == ErrorCode.TOOL_FAILED
    assert [
        (line["event"], line["tool"], line["action"], line["exit_status"]) for line in lines
    ] == [("coding.program_failed", "git", "ls-files", 128)]
    (Path(workspace._git_dir) / "index").unlink()


async def test_a_git_that_does_not_start_says_so_in_the_log(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_started = Ended(End.NOT_STARTED, error_number=13)
    monkeypatch.setattr(Programs, "run", lambda *_: not_started)
    with capture_logs() as lines:
        await call(workspace, "search_files", text="hello")
    assert [(line["tool"], line["reason"], line["status"]) for line in lines] == [
        ("git", "not_started", 13)
    ]
    monkeypatch.undo()


async def test_a_launcher_that_does_not_start_says_so_in_the_log(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    processes._launchers.close()
    monkeypatch.setattr(processes, "PROJECT", tmp_path)
    program = workspace.searcher(["/bin/true"], searching.LIMITS, searching.STARTED_FROM)
    with capture_logs() as lines:
        ended = workspace.read_with(program)
    monkeypatch.undo()
    processes._launchers.close()
    assert ended.end == End.STOPPED
    assert [(line["event"], line["error_code"], line["exit_status"]) for line in lines] == [
        ("coding.launcher_failed", ErrorCode.TOOL_FAILED, 1)
    ]


async def test_a_program_that_is_stopped_is_no_failure(workspace: Workspace) -> None:
    program = workspace.searcher(["/bin/sleep", "60"], searching.LIMITS, searching.STARTED_FROM)
    program.stop()
    with capture_logs() as lines:
        assert workspace.read_with(program).end == End.STOPPED
    assert lines == []
