"""Where the embedded stack keeps what it keeps."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# postgres refuses uid 0. As root it runs under another account, which must be able to reach its
# binaries and its data even when the checkout lies in a closed home directory.
ROOT_STATE: Final = Path("/var/lib/holdfast")


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one embedded installation (`HOLDFAST_HOME`): secrets, logs, broker."""

    path: Path

    def cluster(self, installation_id: str) -> Path:
        """Return the parent of PostgreSQL's data directory.

        For root it lies outside, named after the installation's id and not after its path: a
        home that is moved keeps its data, and a home that is deleted starts afresh instead of
        meeting a cluster whose password went with it.
        """
        if os.geteuid() == 0:
            name = hashlib.sha256(installation_id.encode()).hexdigest()[:16]
            return ROOT_STATE / f"cluster-{name}"
        return self.path / "postgres"

    @property
    def secrets(self) -> Path:
        """Generated once, one file each, mode 0600."""
        return self.path / "secrets"

    @property
    def broker(self) -> Path:
        """The folders of the file broker."""
        return self.path / "broker"

    @property
    def logs(self) -> Path:
        """One log a process."""
        return self.path / "logs"

    @property
    def running(self) -> Path:
        """While the stack runs: its lock and its database address, for commands beside it."""
        return self.path / "run"

    def prepare(self) -> None:
        """Create the directories, closed to other users."""
        for directory in (self.path, self.secrets, self.broker, self.logs, self.running):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
