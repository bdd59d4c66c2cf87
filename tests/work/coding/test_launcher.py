from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from tests.work.coding.running import MIB, Ground, Running, text
from work.coding.orders import End

# Waits until the test makes the file `go`.
WAITING = "while ! [ -e go ]; do sleep 0.02; done"
# Hears nothing but SIGKILL.
DEAF = "trap '' TERM INT HUP"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "job")


def test_a_program_runs_and_says_what_it_says(ground: Ground) -> None:
    ended = ground.run("pwd; echo wrong >&2; exit 3")
    assert (ended.end, ended.exit_status) == (End.EXITED, 3)
    assert text(ended) == f"{ground.tree}\nwrong\n"
    assert list(ground.records.iterdir()) == []


def test_a_program_that_is_not_there_did_not_start(ground: Ground) -> None:
    ended = ground.words("/usr/bin/no-such-program").run()
    assert ended.end == End.NOT_STARTED
    assert ended.error_number == 2


def test_a_program_inherits_no_variable_and_no_descriptor(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_API_KEY", "canary")
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        ended = ground.run("env; ls /proc/self/fd; cat /proc/$PPID/environ | tr '\\0' '\\n'")
    finally:
        os.close(reading)
        os.close(writing)
    assert "canary" not in text(ended)
    assert "SECRET_KEY" not in text(ended)
    # standard input, output and error, and the one with which ls reads the directory
    assert [line for line in text(ended).splitlines() if line.isdigit()] == ["0", "1", "2", "3"]


def test_a_program_has_no_terminal_and_nothing_to_read(ground: Ground) -> None:
    assert ground.run("cat; tty; true").exit_status == 0


def test_of_much_output_the_beginning_and_the_end_are_kept(ground: Ground) -> None:
    """failure H40: a program that says 50 MB."""
    size = 50 * MIB
    ended = ground.run(f"echo begin; head -c {size} /dev/zero | tr '\\0' x; echo; echo end")
    assert ended.end == End.EXITED
    assert ended.output.head.startswith(b"begin\nxxx")
    assert ended.output.tail.endswith(b"xxx\nend\n")
    assert (len(ended.output.head), len(ended.output.tail)) == (1_000, 2_000)
    assert ended.output.size == size + len("begin\n\nend\n")
    assert ended.output.left_out == ended.output.size - 3_000


def test_output_without_end_is_stopped_at_its_bound(ground: Ground) -> None:
    """failure H40: a program that says something for ever."""
    ended = ground.run("exec yes", output_bytes=4 * MIB)
    assert ended.end == End.OUTPUT
    assert ground.running() == []


def test_a_program_that_does_not_end_is_ended(ground: Ground) -> None:
    ended = ground.run(f"{DEAF}; echo here; while :; do :; done", timeout_seconds=3.0)
    assert ended.end == End.TIMEOUT
    assert text(ended) == "here\n"
    assert ground.running() == []


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000 & exit 0",
        f"({DEAF}; while :; do sleep 1; done) & exit 0",
        "setsid sleep 1000 & exit 0",
        f"setsid sh -c \"{DEAF}; sh -c 'setsid sleep 1000 & sleep 1000'\" & exit 0",
        "(setsid sh -c 'sleep 1000 & sleep 1000 &') & exit 0",
    ],
)
def test_nothing_outlives_the_program(ground: Ground, script: str) -> None:
    """failure H65: shell, launcher, and a process that ignores its parent's death."""
    ended = ground.run(script)
    assert ended.end == End.EXITED
    assert ended.left_running > 0
    assert ended.survivors == 0
    assert ground.running() == []


def test_a_daemon_without_our_mark_ends_with_the_program(ground: Ground) -> None:
    ended = ground.run("env -i setsid sleep 1234 & echo $!; exit 0")
    assert not Path("/proc", text(ended).strip()).exists()


def test_stopping_ends_everything_even_what_ignores_it(ground: Ground) -> None:
    """failure H67: SIGKILL after the grace time; the whole is bounded."""
    script = f"{DEAF}; {WAITING}"
    (ground.tree / "deaf").write_text(script)
    running = Running(ground.program(f"setsid sh deaf & {script}"))
    wait_until(lambda: len(ground.running()) >= 2, "both run")
    running.program.stop()
    assert running.wait().end == End.STOPPED
    assert ground.running() == []


def test_a_program_that_was_stopped_before_it_started_never_starts(ground: Ground) -> None:
    program = ground.program("touch started")
    program.stop()
    assert program.run().end == End.STOPPED
    assert not (ground.tree / "started").exists()


def test_a_program_that_stands_still_is_ended_too(ground: Ground) -> None:
    running = Running(ground.program("kill -STOP $$", timeout_seconds=1.0))
    assert running.wait().end == End.TIMEOUT
    assert ground.running() == []


def test_a_newer_generation_ends_what_an_older_one_started(ground: Ground) -> None:
    running = Running(ground.program(f"touch started; {WAITING}"))
    wait_until((ground.tree / "started").exists, "it runs")
    ground.holder.write_text("2")
    assert running.wait().end == End.SUPERSEDED
    assert ground.running() == []


def test_a_program_whose_job_is_gone_is_ended(ground: Ground) -> None:
    running = Running(ground.program(f"touch started; {WAITING}"))
    wait_until((ground.tree / "started").exists, "it runs")
    ground.holder.unlink()
    assert running.wait().end == End.SUPERSEDED


def test_too_many_processes_end_the_program(ground: Ground) -> None:
    many = "n=0; while [ $n -lt 100 ]; do sleep 1000 & n=$((n + 1)); done; wait"
    ended = ground.run(many, tree_processes=50)
    assert (ended.end, ended.survivors) == (End.PROCESSES, 0)
    assert ground.running() == []


def test_too_much_memory_ends_the_program(ground: Ground) -> None:
    hoard = "x = bytearray(1 << 30); import signal; signal.pause()"
    by_the_kernel = ground.run(f"/usr/bin/python3 -c '{hoard}'", data_bytes=64 * MIB)
    assert by_the_kernel.exit_status == 1
    assert "MemoryError" in text(by_the_kernel)
    hoard = "x = b'x' * (200 << 20); import signal; signal.pause()"
    by_the_launcher = ground.run(f'/usr/bin/python3 -c "{hoard}"', tree_bytes=100 * MIB)
    assert by_the_launcher.end == End.MEMORY


def test_a_file_cannot_grow_past_its_bound(ground: Ground) -> None:
    ended = ground.run("head -c 8M /dev/zero > big", file_bytes=MIB)
    assert (ground.tree / "big").stat().st_size == MIB
    assert ended.exit_status == 128 + signal.SIGXFSZ


def test_a_full_disk_ends_the_program(ground: Ground) -> None:
    assert ground.run("sleep 1000", disk_left_bytes=2**62).end == End.DISK


def test_a_program_may_take_so_much_processor_time_and_no_more(ground: Ground) -> None:
    ended = ground.run("while :; do :; done", cpu_seconds=1)
    assert ended.exit_status == -signal.SIGKILL


def test_it_writes_no_core_and_is_the_first_to_go_without_memory(ground: Ground) -> None:
    assert text(ground.run("ulimit -c; cat /proc/self/oom_score_adj")) == "0\n1000\n"


def test_signals_that_python_ignores_work_in_the_program(ground: Ground) -> None:
    assert ground.run("yes | head -n 1").exit_status == 0
