"""Tools of a coding job that list, read, search, edit and commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.errors import ErrorCode
from tests.work.coding.repositories import WRONG, PersonsRepository, call, ended, shell
from turns.bounds import TOOL_RESULT_MAX_BYTES
from turns.tools.registry import Effect, State
from work.coding import bounds
from work.coding.tools import searching
from work.coding.workspace import Workspace


async def test_each_tool_says_truly_what_it_does(workspace: Workspace) -> None:
    effects = {tool.name: tool.effect for tool in workspace.registry()}
    assert effects == {
        "list_files": Effect.READ,
        "read_file": Effect.READ,
        "search_files": Effect.READ,
        "show_changes": Effect.READ,
        "edit_file": Effect.REVERSIBLE,
        "write_file": Effect.REVERSIBLE,
        "delete_file": Effect.REVERSIBLE,
        "commit": Effect.REVERSIBLE,
        "run_checks": Effect.EXTERNAL,
        "run_command": Effect.EXTERNAL,
    }


# --- Looking ----------------------------------------------------------------------------------


async def test_a_directory_is_listed(workspace: Workspace) -> None:
    listed = await call(workspace, "list_files")
    assert listed.result.splitlines() == [
        ".gitignore  13 bytes",
        "README.md  12 bytes",
        "src/",
    ]
    assert (await call(workspace, "list_files", path="src")).result == "app.py  15 bytes"


async def test_all_files_are_listed_but_those_git_ignores(workspace: Workspace) -> None:
    for path in ("new/deep", "noise.log", "build/out"):
        await call(workspace, "write_file", path=path, text="x")
    listed = await call(workspace, "list_files", recursive=True)
    assert listed.result.splitlines() == [
        ".gitignore",
        "README.md",
        "new/deep",
        "src/app.py",
    ]
    below = await call(workspace, "list_files", recursive=True, path="src/")
    assert below.result == "src/app.py"


async def test_a_long_listing_says_how_much_more_there_is(workspace: Workspace) -> None:
    await shell(workspace, "mkdir many; cd many; seq 600 | xargs touch")
    listed = (await call(workspace, "list_files", path="many")).result.splitlines()
    assert (len(listed), listed[-1]) == (501, "[and 100 more]")


async def test_lines_of_a_file_are_read(workspace: Workspace) -> None:
    await call(workspace, "write_file", path="n", text="".join(f"{n}\n" for n in range(1, 9)))
    read = await call(workspace, "read_file", path="n", first_line=3, lines=2)
    assert read.result == "[lines 3 to 4 of 8]\n3\n4\n"
    assert ended(await call(workspace, "read_file", path="n", first_line=9)) == WRONG
    await call(workspace, "write_file", path="empty", text="")
    assert (await call(workspace, "read_file", path="empty")).result == "[empty]"


async def test_a_large_file_is_read_within_the_bound(workspace: Workspace) -> None:
    await shell(
        workspace,
        "yes 'ä line of text' | head -n 9000 > large; "
        "head -c 9000 /dev/zero | tr '\\0' y > long",
    )
    read = await call(workspace, "read_file", path="large")
    assert read.result.startswith("[lines 1 to 500 of 9000]\n")
    assert len(read.result.encode()) <= TOOL_RESULT_MAX_BYTES
    cut = (await call(workspace, "read_file", path="long")).result
    assert cut.endswith("y [cut: the line has 9000 bytes]\n")


async def test_what_is_not_text_is_said_to_be_so(workspace: Workspace) -> None:
    await shell(workspace, "printf 'a\\0b' > binary; printf 'gr\\374n' > latin")
    read = await call(workspace, "read_file", path="binary")
    assert read.result == "[binary is not text: 3 bytes]"
    assert "gr\ufffdn" in (await call(workspace, "read_file", path="latin")).result


@pytest.mark.parametrize("path", ["absent", "src", "", "src/app.py/x"])
async def test_a_file_that_is_not_there_is_not_found(workspace: Workspace, path: str) -> None:
    read = await call(workspace, "read_file", path=path)
    assert ended(read) == (State.FAILED, ErrorCode.NOT_FOUND)


async def test_texts_and_patterns_are_found(workspace: Workspace) -> None:
    await call(workspace, "write_file", path="src/b.py", text="a = (1)\nHELLO(1)\n")
    await call(workspace, "write_file", path="noise.log", text="hello")
    found = await call(workspace, "search_files", text="hello")
    assert found.result.splitlines() == [
        "README.md:1:hello",
        "src/app.py:1:print('hello')",
        "[2 hits in 4 files]",
    ]
    literal = await call(workspace, "search_files", text="(1)")
    assert literal.result.splitlines()[:2] == ["src/b.py:1:a = (1)", "src/b.py:2:HELLO(1)"]
    pattern = await call(
        workspace, "search_files", text=r"^hel+o\b", regex=True, ignore_case=True
    )
    assert pattern.result.splitlines()[:2] == ["README.md:1:hello", "src/b.py:2:HELLO(1)"]
    below = await call(workspace, "search_files", text="hello", path="src")
    assert below.result.splitlines()[0] == "src/app.py:1:print('hello')"


async def test_a_search_says_truly_what_it_passed_over(workspace: Workspace) -> None:
    await shell(
        workspace,
        f"ln -s README.md one && ln -s src two && printf 'hello\\0' > zero && rm src/app.py "
        f"&& head -c {bounds.SEARCH_FILE_MAX_BYTES + 1} /dev/zero > huge",
    )
    found = await call(workspace, "search_files", text="hello")
    *hits, said = found.result.splitlines()
    assert hits == ["README.md:1:hello"]
    counted, others = said.strip("[]").split("; not searched: ")
    assert counted == "1 hit in 2 files"
    assert sorted(others.split(", ")) == [
        "1 no text",
        "1 not there",
        "1 too large",
        "2 linked (links are not followed)",
    ]


async def test_a_search_says_that_files_with_another_name_were_passed_over(
    workspace: Workspace,
) -> None:
    (workspace.root / "hard").hardlink_to(workspace.root / "README.md")
    found = await call(workspace, "search_files", text="hello")
    assert found.result.splitlines()[-1].endswith(
        "; not searched: 2 with another name elsewhere]"
    )


async def test_a_search_below_what_is_not_there_says_so(workspace: Workspace) -> None:
    assert ended(await call(workspace, "search_files", text="x", path="nowhere/x")) == (
        State.FAILED,
        ErrorCode.NOT_FOUND,
    )


async def test_a_search_knows_letters_of_any_language(workspace: Workspace) -> None:
    await call(workspace, "write_file", path="de", text="Über\nKäse\n")
    found = await call(workspace, "search_files", text="üBER", ignore_case=True)
    assert found.result.splitlines()[0] == "de:1:Über"
    found = await call(workspace, "search_files", text=r"^K\wse$", regex=True)
    assert found.result.splitlines()[0] == "de:2:Käse"


async def test_the_name_of_a_file_cannot_pass_for_a_hit(workspace: Workspace) -> None:
    await shell(workspace, "printf hello > \"$(printf 'x:1:y\\nz\\377')\"")
    found = await call(workspace, "search_files", text="hello", path="")
    assert found.result.splitlines()[2] == "x:1:y\ufffdz\ufffd:1:hello"


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "(?L)a"])
async def test_what_is_no_pattern_is_said_to_be_none(
    workspace: Workspace, pattern: str
) -> None:
    found = await call(workspace, "search_files", text=pattern, regex=True)
    assert ended(found) == WRONG


async def test_a_search_may_be_of_one_file(workspace: Workspace) -> None:
    found = await call(workspace, "search_files", text="hello", path="./src//app.py")
    assert found.result.splitlines() == ["src/app.py:1:print('hello')", "[1 hit in 1 file]"]


async def test_the_changes_of_what_was_removed_are_shown(workspace: Workspace) -> None:
    await shell(workspace, "rm -r src && echo file > src")
    for path in ("src", "src/app.py"):
        shown = await call(workspace, "show_changes", path=path)
        assert "-print('hello')" in shown.result
    assert (await call(workspace, "show_changes", path="x/y")).result == "[nothing has changed]"


async def test_hits_are_bounded(workspace: Workspace) -> None:
    await shell(workspace, f"yes {'x' * 900} | head -n 500 > many")
    found = (await call(workspace, "search_files", text="x")).result.splitlines()
    assert len(found) == bounds.SEARCH_HITS + 1
    assert found[0].endswith("x [cut]")
    assert found[-1] == "[there are more than 100 hits: ask more narrowly]"


async def test_a_pattern_that_would_take_for_ever_is_given_up(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ended(await call(workspace, "search_files", text="(", regex=True)) == WRONG
    monkeypatch.setattr(searching, "LIMITS", replace(searching.LIMITS, timeout_seconds=1.0))
    await call(workspace, "write_file", path="evil", text="a" * 60 + "!\n")
    found = await call(workspace, "search_files", text="(a+)+$", regex=True)
    assert ended(found) == (State.FAILED, ErrorCode.TOOL_TIMEOUT)


# --- Changing ---------------------------------------------------------------------------------


async def test_text_is_replaced_where_it_occurs_once(workspace: Workspace) -> None:
    edited = await call(
        workspace, "edit_file", path="README.md", old_text="world\n", new_text="moon\n"
    )
    assert edited.result == "Replaced at line 2."
    assert (workspace.root / "README.md").read_text() == "hello\nmoon\n"


@pytest.mark.parametrize(
    ("old_text", "said"),
    [
        ("absent", "`old_text` does not occur in the file."),
        ("l", "`old_text` occurs 3 times. Give more of what is around it."),
    ],
)
async def test_text_that_does_not_occur_once_is_not_replaced(
    workspace: Workspace, old_text: str, said: str
) -> None:
    edited = await call(
        workspace, "edit_file", path="README.md", old_text=old_text, new_text="x"
    )
    assert (ended(edited), edited.result) == (WRONG, said)
    assert (workspace.root / "README.md").read_text() == "hello\nworld\n"


async def test_lines_that_end_otherwise_are_said_to(workspace: Workspace) -> None:
    await shell(workspace, "printf 'one\\r\\ntwo\\r\\n' > dos")
    edited = await call(
        workspace, "edit_file", path="dos", old_text="one\ntwo", new_text="three"
    )
    assert "CR LF" in edited.result
    await call(workspace, "edit_file", path="dos", old_text="two", new_text="2")
    assert (workspace.root / "dos").read_bytes() == b"one\r\n2\r\n"


async def test_a_file_is_created_replaced_and_deleted(workspace: Workspace) -> None:
    created = await call(
        workspace, "write_file", path="bin/run", text="#!/bin/sh\n", executable=True
    )
    assert created.result == "Created: 10 bytes."
    replaced = await call(workspace, "write_file", path="bin/run", text="#!/bin/sh\ntrue\n")
    assert replaced.result == "Replaced: 15 bytes."
    assert (await call(workspace, "run_command", argv=["bin/run"])).state == State.SUCCEEDED
    assert (await call(workspace, "delete_file", path="bin/run")).result == "Deleted."
    gone = await call(workspace, "delete_file", path="bin/run")
    assert ended(gone) == (State.FAILED, ErrorCode.NOT_FOUND)


async def test_text_that_no_file_can_hold_is_refused(workspace: Workspace) -> None:
    assert ended(await call(workspace, "write_file", path="x", text="a\0b")) == WRONG
    assert ended(await call(workspace, "commit", message="a\0b")) == WRONG
    assert ended(await call(workspace, "commit", message=" \n")) == WRONG
    assert not (workspace.root / "x").exists()


# --- Committing -------------------------------------------------------------------------------


async def test_changes_are_shown_since_the_start_and_since_the_commit(
    workspace: Workspace,
) -> None:
    assert (await call(workspace, "show_changes")).result == "[nothing has changed]"
    await call(workspace, "write_file", path="one", text="1\n")
    await call(workspace, "commit", message="One")
    await call(workspace, "write_file", path="two", text="2\n")
    await call(workspace, "delete_file", path="README.md")
    start = (await call(workspace, "show_changes")).result
    assert "+1\n" in start
    assert "+2\n" in start
    assert "-hello\n" in start
    commit = (await call(workspace, "show_changes", since="commit")).result
    assert "+1\n" not in commit
    assert "+2\n" in commit
    below = (await call(workspace, "show_changes", path="two")).result
    assert "-hello\n" not in below


async def test_showing_changes_changes_nothing(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    await call(workspace, "write_file", path="new", text="1\n")
    own = repository.common / "worktrees" / "job-1"
    before = {path: path.read_bytes() for path in own.iterdir() if path.is_file()}
    await call(workspace, "show_changes")
    assert {path: path.read_bytes() for path in own.iterdir() if path.is_file()} == before


async def test_a_large_difference_is_cut(workspace: Workspace) -> None:
    await shell(workspace, "seq 100000 > numbers")
    shown = await call(workspace, "show_changes")
    assert shown.state == State.SUCCEEDED
    assert shown.result.endswith("[cut: there is more]")
    assert len(shown.result.encode()) <= TOOL_RESULT_MAX_BYTES


async def test_a_commit_says_what_is_in_it(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    await call(workspace, "write_file", path="new", text="1\n")
    done = await call(workspace, "commit", message="Add it\n\n-F /etc/passwd\n")
    tip = repository.git("rev-parse", "holdfast/job-1")
    assert done.result == f"Committed {tip} on holdfast/job-1: 1 file.\nnew"
    said = repository.git("show", "--no-patch", "--format=%B", tip)
    assert said == "Add it\n\n-F /etc/passwd\n"


async def test_what_git_cannot_keep_does_not_keep_the_rest_out(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    await shell(
        workspace,
        "echo 1 > good; mkfifo pipe; mkdir 'git~1' nested; echo x > 'git~1/x'; "
        "mkdir nested/.git; echo x > nested/file; ln -s x .gitmodules",
    )
    done = await call(workspace, "commit", message="Some")
    assert done.state == State.SUCCEEDED
    assert done.result.splitlines()[-3:] == ["git~1", "nested", "pipe"]
    names = repository.git("ls-tree", "-r", "--name-only", "holdfast/job-1").splitlines()
    assert names == [".gitignore", "README.md", "good", "src/app.py"]


async def test_a_file_that_git_cannot_take_is_named_and_does_not_keep_the_rest_out(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    await shell(
        workspace,
        "echo '*.16 text working-tree-encoding=UTF-16' > .gitattributes; mkdir many; "
        "printf a > many/bad.16; printf b > worse.16; seq 40 | sed 's,^,many/,' | xargs touch",
    )
    done = await call(workspace, "commit", message="Some")
    assert done.state == State.SUCCEEDED
    assert done.result.splitlines()[-2:] == ["many/bad.16", "worse.16"]
    names = repository.git("ls-tree", "-r", "--name-only", "holdfast/job-1").splitlines()
    assert len([name for name in names if name.startswith("many/")]) == 40
    assert ".gitattributes" in names


async def test_where_it_is_not_the_file_nothing_is_given_up(
    workspace: Workspace, repository: PersonsRepository
) -> None:
    """Such as a disk that is full, or objects that cannot be written."""
    for name in ("one", "two"):
        await call(workspace, "write_file", path=name, text=f"{name}\n")
    objects = repository.common / "objects"
    for directory in (objects, *objects.iterdir()):
        directory.chmod(0o555)
    done = await call(workspace, "commit", message="Both")
    for directory in (objects, *objects.iterdir()):
        directory.chmod(0o755)
    assert ended(done) == (State.FAILED, ErrorCode.TOOL_FAILED)
    done = await call(workspace, "commit", message="Both")
    assert done.result.splitlines()[1:] == ["one", "two"]
