"""Where a job of each kind works, and with which tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from recovery.fences import Fence
from turns import tools
from turns.tools.registry import Registry
from work.models import WorkJob

# A job cannot start or steer jobs: it does not have these, and a call of one is refused.
JOB_TOOLS: Final = ("start_job", "job_status", "list_jobs", "cancel_job")


class Workspace(Protocol):
    """Where one job works, under one claim."""

    def registry(self) -> Registry:
        """Return the tools the job may use there."""

    async def close(self, *, ended: bool) -> None:
        """Let go of it; once the job has ended, leave nothing behind."""


# Opens the workspace of a job under its claim. Raises Refused where there is none to be had;
# the job then fails with the code.
OpenWorkspace = Callable[[WorkJob, Fence], Awaitable[Workspace]]


@dataclass(frozen=True, slots=True)
class ToolsAlone:
    """A job that works with what a turn has, and leaves nothing on any machine."""

    tools: Registry

    def registry(self) -> Registry:
        """Return the tools of turns."""
        return self.tools

    async def close(self, *, ended: bool) -> None:
        """There is nothing to let go of."""


async def open_deep_work(_job: WorkJob, _fence: Fence) -> Workspace:
    """Return what deep work is done with."""
    return ToolsAlone(tools.registry)


OPENERS: Final[Mapping[str, OpenWorkspace]] = {WorkJob.Kind.DEEP_WORK: open_deep_work}
