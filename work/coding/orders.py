"""What a worker asks its launcher to run, and what it hears of it: the words of one pipe.

The standard library only; see `work.coding.launcher`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import IO, Final

from work.coding.sandbox import Confinement

HEADER_MAX_BYTES: Final = 64 * 1024


class End(StrEnum):
    """Why a program is no longer running."""

    EXITED = "exited"
    NOT_STARTED = "not_started"
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    SUPERSEDED = "superseded"
    OUTPUT = "output"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use; the launcher ends it past `timeout_seconds`, and past what the
    whole tree of its processes may be and hold."""

    timeout_seconds: float
    grace_seconds: float
    cpu_seconds: int
    data_bytes: int
    file_bytes: int
    open_files: int
    tree_bytes: int
    tree_processes: int
    disk_left_bytes: int
    # of each stream the beginning and the end are kept
    head_bytes: int
    tail_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Order:
    """One program to run. `holder` is the file of the generations that have come to its place
    (`holders`): a newer one ends this. `record` is written while it runs."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    limits: Limits
    holder: str
    generation: int
    record: str
    confinement: Confinement | None
    # standard error goes where standard output goes
    merged: bool = True

    def encode(self) -> bytes:
        """Return the line that carries it."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Order:
        """Return the order a line carries."""
        said = json.loads(line)
        said["limits"] = Limits(**said["limits"])
        if said["confinement"] is not None:
            said["confinement"] = Confinement(**said["confinement"])
        return cls(**said)


@dataclass(frozen=True, slots=True)
class Stream:
    """What is kept of one stream: `size` is that of the whole."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0

    @property
    def left_out(self) -> int:
        """How many bytes between head and tail were not kept."""
        return self.size - len(self.head) - len(self.tail)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. A negative `exit_status` is the signal that ended it.

    `left_running` counts the processes that it had left behind at its own end, and that were
    then to be ended; `survivors` those that even SIGKILL did not end in time.
    """

    end: End
    exit_status: int | None = None
    error_number: int = 0
    left_running: int = 0
    survivors: int = 0
    output: Stream = Stream()
    errors: Stream = Stream()

    def encode(self) -> bytes:
        """Return a header line and the bytes of the streams behind it."""
        streams = (self.output, self.errors)
        header = {
            "end": self.end,
            "exit_status": self.exit_status,
            "error_number": self.error_number,
            "left_running": self.left_running,
            "survivors": self.survivors,
            "streams": [(len(one.head), len(one.tail), one.size) for one in streams],
        }
        return b"".join(
            [json.dumps(header).encode(), b"\n", *(one.head + one.tail for one in streams)]
        )

    @classmethod
    def read(cls, pipe: IO[bytes]) -> Ended | None:
        """Return what the launcher says, None when it died without a word."""
        line = pipe.readline(HEADER_MAX_BYTES)
        if not line.endswith(b"\n"):
            return None
        said = json.loads(line)
        streams = [
            Stream(pipe.read(head), pipe.read(tail), size)
            for head, tail, size in said.pop("streams")
        ]
        said["end"] = End(said["end"])
        return cls(**said, output=streams[0], errors=streams[1])
