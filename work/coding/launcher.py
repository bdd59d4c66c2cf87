"""Runs a program, watches over everything it starts, and leaves nothing of it running.

A process of its own between the worker and each program:

    worker --the order, then the lifeline--> launcher --> program --> whatever it starts
           <--how it ended, and its output--

The lifeline closes when the worker lets go or dies, whatever it died of; then, as after the
program's own end, everything below the launcher is asked to end, and killed after a grace time.
Nothing escapes by leaving its group or losing its parent: the launcher is the one that orphans
fall to. It stands outside the program's confinement, so the program cannot signal it.

Launchers are forked from a server that each worker starts once (`python -m
work.coding.launcher`) and that ends with it: an interpreter takes longer to start than Git to
answer. No Django, the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

from work.coding import holders, mounts, processtree, sandbox
from work.coding.orders import End, Ended, Limits, Order, Stream
from work.coding.processtree import Process
from work.coding.taskgroup import TaskGroup

# The server hears of orders on this descriptor; each launcher has its own two in these places.
ORDERS: Final = 0
LIFELINE: Final = 0
ANSWER: Final = 1
LOOK_SECONDS: Final = 0.5
READ_BYTES: Final = 64 * 1024
# After the last process has ended nothing can be written any more; what is in the pipe is read.
DRAIN_SECONDS: Final = 1.0
NICENESS: Final = 5
# Of all processes of the machine the kernel takes this one first when memory runs out.
OOM_SCORE: Final = b"1000"
# The program itself failed to start: the pipe says why, this status only that.
NOT_STARTED_STATUS: Final = 127
_EXCESS: Final = frozenset({End.OUTPUT, End.MEMORY, End.PROCESSES, End.DISK, End.SUPERSEDED})


class _Kept:
    """The beginning and the end of a stream."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes + READ_BYTES:
            self._trim()

    def stream(self) -> Stream:
        self._trim()
        return Stream(bytes(self._head), bytes(self._tail), self.size)

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_bytes)]


class Launcher:
    """One program from its start to the end of all that came of it."""

    def __init__(self, order: Order, *, read_only_view: bool) -> None:
        self._order = order
        self._read_only_view = read_only_view and order.confinement is not None
        self._own = _known(os.getpid())
        self._group = TaskGroup.made(order.limits.tree_processes)
        self._child = 0
        self._status: int | None = None
        self._start_error = 0
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._kept: dict[int, _Kept] = {}

    def run(self) -> Ended:
        """Return how it ended. Nothing of it is alive then."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # Without it the orphans of the program would fall to init, out of sight.
        sandbox.become_subreaper()
        left_running, survivors, end = 0, 0, End.STOPPED
        with self._recorded():
            try:
                streams = self._start()
                end = self._watch()
                if end == End.EXITED and self._group.has_refused:
                    end = End.PROCESSES
                if end == End.EXITED and not self._reap():
                    left_running = max(1, len(self._own.descendants()))
            finally:
                survivors = processtree.end(
                    self._own.descendants,
                    # What takes more than it may is given no time to take more.
                    grace_seconds=0.0 if end in _EXCESS else self._order.limits.grace_seconds,
                    are_gone=self._reap_and_read,
                )
            self._drain()
            self._group.remove()
        if self._start_error:
            end = End.NOT_STARTED
        kept = [stream.stream() for stream in streams]
        return Ended(
            end,
            exit_status=self._status if end == End.EXITED else None,
            error_number=self._start_error,
            left_running=left_running,
            survivors=survivors,
            output=kept[0],
            errors=kept[1] if len(kept) > 1 else Stream(),
        )

    @contextlib.contextmanager
    def _recorded(self) -> Iterator[None]:
        """Leave word of this process while it runs, for who may have to end it."""
        record = Path(self._order.record)
        partial = record.with_suffix(".partial")
        partial.write_text(processtree.record(self._own))
        partial.replace(record)
        yield
        # Only where all has ended. Otherwise somebody must look for what is left.
        record.unlink(missing_ok=True)

    def _start(self) -> list[_Kept]:
        order = self._order
        output_end, output = os.pipe2(os.O_CLOEXEC)
        errors_end, errors = (-1, output) if order.merged else os.pipe2(os.O_CLOEXEC)
        said_end, said = os.pipe2(os.O_CLOEXEC)
        self._child = os.fork()
        if not self._child:
            view = self._read_only_view
            _become(
                order, self._own.pid, output, errors, said,
                group=self._group, read_only_view=view,
            )  # fmt: skip
        for descriptor in {output, errors, said}:
            os.close(descriptor)
        ends = [output_end] if order.merged else [output_end, errors_end]
        for descriptor in ends:
            os.set_blocking(descriptor, False)
            self._kept[descriptor] = _Kept(order.limits.head_bytes, order.limits.tail_bytes)
        streams = list(self._kept.values())
        # Until the program is there, or has said why it is not.
        with open(said_end, "rb") as pipe:  # noqa: PTH123 - a descriptor
            self._start_error = int(pipe.read() or 0)
        return streams

    def _watch(self) -> End:
        """Return why the watch ended: the program's own end, or something that must end it."""
        limits = self._order.limits
        deadline = time.monotonic() + limits.timeout_seconds
        look_at = time.monotonic() + LOOK_SECONDS
        while True:
            wait = min(deadline, look_at) - time.monotonic()
            stopped = self._take(max(0.0, wait))
            self._reap()
            if self._status is not None:
                return End.EXITED
            if stopped:
                return End.STOPPED
            if sum(kept.size for kept in self._kept.values()) > limits.output_bytes:
                return End.OUTPUT
            if time.monotonic() >= deadline:
                return End.TIMEOUT
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_SECONDS
                if excess := self._excess(limits):
                    return excess

    def _take(self, seconds: float) -> bool:
        """Take in what is there, waiting at most so long; return whether to stop."""
        poll = select.poll()
        for descriptor in (LIFELINE, self._woken, *self._kept):
            poll.register(descriptor, select.POLLIN)
        stopped = False
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == LIFELINE:
                stopped = stopped or not os.read(LIFELINE, 1)
            elif descriptor == self._woken:
                woken_by = set(os.read(self._woken, 1024))
                stopped = stopped or bool(woken_by - {int(signal.SIGCHLD)})
            else:
                self._read(descriptor)
        return stopped

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        self._kept[descriptor].add(data)
        if not data:
            os.close(descriptor)
            del self._kept[descriptor]

    def _excess(self, limits: Limits) -> End | None:
        if holders.newest(Path(self._order.holder)) != self._order.generation:
            return End.SUPERSEDED
        tree = self._own.descendants()
        if len(tree) > limits.tree_processes:
            return End.PROCESSES
        if sum(map(processtree.resident_bytes, tree)) > limits.tree_bytes:
            return End.MEMORY
        disk = os.statvfs(self._order.holder)
        if disk.f_bavail * disk.f_frsize < limits.disk_left_bytes:
            return End.DISK
        return None

    def _reap(self) -> bool:
        """Take note of who has ended; return whether nobody is left.

        Orphans fall to this process, so without children it has no descendants either. No look
        at /proc could say that: it is not of one moment.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self._child:
                    self._status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return True

    def _reap_and_read(self) -> bool:
        """Reap, and keep what an ending program says; a full pipe would hold it."""
        for descriptor in list(self._kept):
            self._read(descriptor)
        return self._reap()

    def _drain(self) -> None:
        until = time.monotonic() + DRAIN_SECONDS
        while self._kept and time.monotonic() < until:
            select.select(list(self._kept), [], [], DRAIN_SECONDS)
            self._reap_and_read()


def _become(
    order: Order,
    parent: int,
    output: int,
    errors: int,
    said: int,
    *,
    group: TaskGroup,
    read_only_view: bool,
) -> NoReturn:
    """Turn the forked child into the program, or tell the pipe why that failed."""
    code = 1
    try:
        _die_with(parent)
        os.setsid()
        _tie_down(order.limits)
        group.join()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        # Python ignores these two, and what is ignored stays so in a program.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0o022)
        if order.confinement is not None:
            sandbox.enforce(order.confinement, read_only_view=read_only_view)
        # After the change of credentials that a view needs, which clears the setting.
        _die_with(parent)
        os.chdir(order.cwd)
        os.execvpe(order.argv[0], order.argv, order.environment)  # noqa: S606 - no shell
    except OSError as error:
        code = error.errno or code
    except BaseException:  # noqa: BLE001, S110 - whatever it is, this process must not go on
        pass
    os.write(said, str(code).encode())
    os._exit(NOT_STARTED_STATUS)


def _die_with(parent: int) -> None:
    sandbox.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died between fork and prctl
        os._exit(NOT_STARTED_STATUS)


def _tie_down(limits: Limits) -> None:
    """Set the limits that the kernel keeps for each process."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(OOM_SCORE)
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        # not RLIMIT_AS: runtimes reserve far more addresses than they use
        resource.RLIMIT_DATA: limits.data_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
    }
    if os.getuid() != 0:  # root is not counted: see the task group
        others = processtree.task_count(os.getuid())
        bounds[resource.RLIMIT_NPROC] = others + limits.tree_processes
    for name, bound in bounds.items():
        _, hard = resource.getrlimit(name)
        most = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(name, (most, most))


def _known(pid: int) -> Process:
    process = Process.now(pid)
    if process is None:
        raise LookupError("a running process is not in /proc")
    return process


def _order() -> Order | None:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(LIFELINE, READ_BYTES)
        if not data:
            return None
        line += data
    return Order.decode(line)


def launch(*, read_only_view: bool) -> None:
    """Do what the order says; nothing, when the worker died before it had said it."""
    order = _order()
    if order is None:
        return
    answer = Launcher(order, read_only_view=read_only_view).run().encode()
    with contextlib.suppress(BrokenPipeError):
        while answer:
            answer = answer[os.write(ANSWER, answer) :]


def serve() -> None:
    """Fork a launcher for each order, until the worker is gone.

    An order is announced by two descriptors: the end of a pipe to read it from, and the end of
    one to answer on.
    """
    read_only_view = mounts.can_be_read_only()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # launchers answer for themselves
    with socket.socket(fileno=ORDERS) as orders:
        while True:
            announced, descriptors, _, _ = socket.recv_fds(orders, 1, 2)
            if not announced:
                return
            if not os.fork():
                _become_launcher(*descriptors, read_only_view=read_only_view)
            for descriptor in descriptors:
                os.close(descriptor)


def _become_launcher(lifeline: int, answer: int, *, read_only_view: bool) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.dup2(lifeline, LIFELINE, inheritable=False)
        os.dup2(answer, ANSWER, inheritable=False)
        for descriptor in (lifeline, answer):
            os.close(descriptor)
        launch(read_only_view=read_only_view)
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    serve()
