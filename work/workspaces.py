"""Where a job of each kind works, and with which tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from recovery.fences import Fence
from turns import tools
from turns.tools.registry import Registry
from work.coding.opening import open_coding
from work.coding.reaping import reap_worktrees
from work.models import WorkJob


class Workspace(Protocol):
    """Where one job works, under one claim."""

    @property
    def briefing(self) -> str:
        """What the model should know of it before its first call."""

    def registry(self) -> Registry:
        """Return the tools the job may use there."""

    def is_ours(self) -> bool:
        """Return whether this worker may still work there, as far as the machine knows."""

    async def take_down(self) -> str:
        """Take it down, as the work is done; return in a sentence what it leaves behind. A
        later claim says the same, until the close.

        Raises:
            WorkspaceLost: another claim works there. Nothing was touched.
        """

    async def close(self) -> str:
        """Take it down, if it was not, and leave nothing of it: the job has ended."""

    async def release(self) -> None:
        """Leave it as it is, for who claims the job next."""


# Opens the workspace of a job under its claim. Raises Refused where there is none to be had;
# the job then fails with the code. WorkspaceLost: another claim works there.
OpenWorkspace = Callable[[WorkJob, Fence], Awaitable[Workspace]]


@dataclass(frozen=True, slots=True)
class ToolsAlone:
    """For work with what a turn has, that leaves nothing on any machine."""

    tools: Registry
    briefing: str = ""

    def registry(self) -> Registry:
        """Return the tools of turns."""
        return self.tools

    def is_ours(self) -> bool:
        """It is nowhere, and so nobody else's."""
        return True

    async def take_down(self) -> str:
        """There is nothing to take down."""
        return ""

    async def close(self) -> str:
        """There was nothing to leave."""
        return ""

    async def release(self) -> None:
        """There is nothing to leave."""


async def open_deep_work(_job: WorkJob, _fence: Fence) -> Workspace:
    """Return what deep work is done with."""
    return ToolsAlone(tools.registry)


OPENERS: Final[Mapping[str, OpenWorkspace]] = {
    WorkJob.Kind.DEEP_WORK: open_deep_work,
    WorkJob.Kind.CODING: open_coding,
}


def clear_up(only: Collection[int] | None = None) -> None:
    """Remove what ended jobs have left on this machine, `only` these or all of them, where
    their workers could not."""
    reap_worktrees(only)
