"""What a model may do in a job's worktree."""

from __future__ import annotations

from recovery.errors import ErrorCode
from turns.tools.registry import Registry
from work.coding.tools import branch, editing, reading, running, searching
from work.coding.workspace import Workspace
from work.models import Computer


def tools_of(workspace: Workspace) -> Registry:
    """Return the tools of the workspace.

    What the tier does not allow is not offered. A model that calls it all the same is refused,
    and the step says so.
    """
    looking = [*reading.tools(workspace), searching.tool(workspace)]
    looking.append(branch.show_changes(workspace))
    changing = [*editing.tools(workspace), running.run_checks(workspace)]
    changing.append(branch.commit(workspace))
    command = running.run_command(workspace)
    forbidden = {
        Computer.Tier.PROBE.value: [*changing, command],
        Computer.Tier.SHELL.value: [],
    }.get(workspace.authority.tier, [command])
    return Registry([*looking, *changing, command]).without(
        (tool.name for tool in forbidden), ErrorCode.COMMAND_REFUSED
    )
