"""What the kernel refuses a held program, looked at from inside."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from tests.work.coding.running import Ground, text
from work.coding import confinement, sandbox, syscalls
from work.coding.confinement import Hold

PYTHON = "/usr/bin/python3"


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "job")


def python(ground: Ground, code: str) -> str:
    ended = ground.words(PYTHON, "-c", code).run()
    return text(ended)


def test_this_machine_holds_programs() -> None:
    """Without it the other tests would pass for nothing, and checks would not run."""
    assert sandbox.abi() >= sandbox.WHOLE_ABI
    assert confinement.hold() == Hold.WHOLE


def test_only_the_named_directories_are_changed_and_read(
    ground: Ground, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    script = f"""
        touch inside; cat {outside}/secret; ls {outside}
        echo x > {outside}/new; rm {outside}/secret; mv {outside}/secret here
        ln {outside}/secret hard; truncate -s 0 {outside}/secret; mkdir {outside}/directory
        ln -s {outside}/secret soft; cat soft; echo x > soft; mv inside {outside}/moved
    """
    said = text(ground.run(script))
    assert "canary" not in said
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "canary"
    assert {path.name for path in ground.tree.iterdir()} == {"inside", "soft"}


def test_permissions_owners_and_times_outside_stand_still(
    ground: Ground, tmp_path: Path
) -> None:
    """Landlock alone would let them be changed."""
    victim = tmp_path / "victim"
    victim.write_text("x")
    before = victim.stat()
    ground.run(f"chmod 777 {victim}; touch -d 2001-01-01 {victim}; chown 1:1 {victim}")
    after = victim.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_uid) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_uid,
    )


@pytest.mark.parametrize(
    "family", ["AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK", "AF_PACKET", "AF_VSOCK"]
)
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM", "SOCK_RAW"])
def test_no_socket_of_any_kind_is_made(ground: Ground, family: str, kind: str) -> None:
    said = python(ground, f"import socket; socket.socket(socket.{family}, socket.{kind})")
    assert "PermissionError" in said


def test_pairs_and_pipes_work(ground: Ground) -> None:
    code = "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1))"
    assert python(ground, code) == "b'x'\n"
    assert text(ground.run("echo x | cat")) == "x\n"


def test_other_processes_are_neither_signalled_nor_looked_into(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = os.getpid()
    script = f"""
        kill -0 {own} && echo signalled; kill -9 $PPID && echo killed
        cat /proc/{own}/environ /proc/$PPID/environ; ls /proc/{own}/fd /proc/{own}/root/
        cat /proc/{own}/maps /proc/{own}/mem
    """
    said = text(ground.run(script))
    assert "signalled" not in said
    assert "killed" not in said
    assert "SECRET_KEY" not in said
    assert f"/proc/{own}/environ: Permission denied" in said


def test_limits_of_other_processes_are_not_changed(ground: Ground) -> None:
    code = f"import resource as r; r.prlimit({os.getpid()}, r.RLIMIT_CPU, (1, 1))"
    assert "PermissionError" in python(ground, code)
    own = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); print('set')"
    assert python(ground, own) == "set\n"


@pytest.mark.parametrize("flags", ["-U", "-m", "-n", "-p --fork", "-i", "-u", "-C"])
def test_no_namespace_is_entered(ground: Ground, flags: str) -> None:
    assert ground.run(f"unshare {flags} true").exit_status != 0


def test_no_privilege_is_left_and_none_comes_back(ground: Ground) -> None:
    said = text(ground.run("cat /proc/self/status"))
    status = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


@pytest.mark.parametrize("name", ["io_uring_setup", "clone3"])
def test_what_a_filter_cannot_look_into_seems_to_be_missing(ground: Ground, name: str) -> None:
    number = syscalls._MISSING[name][0 if os.uname().machine == "x86_64" else 1]
    code = (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); "
        f"print(c.syscall({number}, None, 0), ctypes.get_errno())"
    )
    assert python(ground, code) == "-1 38\n"


def test_a_socket_of_a_service_of_this_machine_is_out_of_reach(
    ground: Ground, tmp_path: Path
) -> None:
    """A container engine or a database listens on such a one."""
    with socket.socket(socket.AF_UNIX) as listener:
        path = ground.tree / "service"
        listener.bind(str(path))
        listener.listen()
        code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{path}')"
        assert "PermissionError" in python(ground, code)


def test_a_hidden_directory_is_cut_out_of_what_is_open(
    settings: Settings, tmp_path: Path
) -> None:
    for name in ("project/src", "project/.holdfast/secrets", "project/.holdfast/worktrees/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "project" / "link").symlink_to(tmp_path / "project" / ".holdfast")
    settings.HOLDFAST_HOME = tmp_path / "project" / ".holdfast"
    own = tmp_path / "project/.holdfast/worktrees/1"
    held = confinement.of_program(readable=[tmp_path / "project"], own=[own], writable=[own])
    assert held is not None
    ours = [path for path in held.readable if path.startswith(str(tmp_path))]
    assert ours == [str(tmp_path / "project/src"), str(own)]
    inside = confinement.of_program(readable=[settings.HOLDFAST_HOME / "secrets"])
    assert inside is not None
    assert not any(path.startswith(str(tmp_path)) for path in inside.readable)


def test_what_the_operator_adds_is_readable_and_on_the_path(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tools").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/tools:{tmp_path}/other:/usr/bin")
    held = confinement.of_program(readable=[])
    assert str(tmp_path) not in confinement.search_path(held)
    settings.HOLDFAST_CODING_READABLE = [str(tmp_path / "tools")]
    held = confinement.of_program(readable=[])
    assert confinement.search_path(held).split(":")[:2] == [f"{tmp_path}/tools", "/usr/bin"]
