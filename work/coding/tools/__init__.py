"""What a model may do in a job's worktree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import ConfigDict

from recovery.errors import ErrorCode
from turns.tools.registry import (
    Arguments,
    Effect,
    Invocation,
    Registry,
    State,
    Tool,
    ToolFailed,
)
from work.coding.tools import branch, editing, reading, running, searching

if TYPE_CHECKING:
    from work.coding.workspace import Workspace

PROBE: Final = "probe"
SHELL: Final = "shell"


class CodingTools(Registry):
    """The tools of one workspace.

    A tool that the tier does not allow is not offered. A model that calls it all the same is
    refused, and the step says so.
    """

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._forbidden: dict[str, Tool[Any]] = {}
        tier = workspace.authority.tier
        for tool in (*reading.tools(workspace), searching.tool(workspace)):
            self.register(tool)
        self.register(branch.show_changes(workspace))
        writing = (*editing.tools(workspace), branch.commit(workspace))
        for tool in writing:
            self._offer(tool, allowed=tier != PROBE)
        self._offer(running.run_checks(workspace), allowed=tier != PROBE)
        self._offer(running.run_command(workspace), allowed=tier == SHELL)

    def get(self, name: str) -> Tool[Any] | None:
        """Return the tool called `name`, one that refuses where it is not allowed here."""
        return super().get(name) or self._forbidden.get(name)

    def _offer(self, tool: Tool[Any], *, allowed: bool) -> None:
        if allowed:
            self.register(tool)
        else:
            self._forbidden[tool.name] = _refusing(tool)


class _Anything(Arguments):
    """Arguments that nobody will read."""

    model_config = ConfigDict(extra="ignore")


def _refusing(tool: Tool[Any]) -> Tool[Any]:
    def refuse(_invocation: Invocation[_Anything]) -> str:
        raise ToolFailed(ErrorCode.COMMAND_REFUSED, state=State.REFUSED)

    return Tool(
        name=tool.name,
        description=tool.description,
        arguments=_Anything,
        # it does nothing at all
        effect=Effect.READ,
        call=refuse,
    )
