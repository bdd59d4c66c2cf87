"""A tool that counts its calls, and what the model was told of calls."""

from __future__ import annotations

from typing import Any

from tests.simulators.client import Simulator
from turns.models import ToolStep
from turns.tools.registry import Arguments, Effect, Invocation, Tool


class Nothing(Arguments):
    pass


class Numbered(Arguments):
    n: int


def outputs(model: Simulator, post: int) -> list[dict[str, Any]]:
    """Return the calls and results that request number `post` (from 0) told the model."""
    items = model.requests()[post].json["input"]
    return [item for item in items if item["type"].startswith("function_call")]


def offered(model: Simulator, post: int) -> list[str]:
    """Return the names of the tools that request number `post` offered."""
    return [tool["name"] for tool in model.requests()[post].json.get("tools", [])]


class Counter:
    """A tool that counts how often it ran, and with whose scope."""

    def __init__(self, effect: ToolStep.Effect = Effect.READ) -> None:
        self.calls: list[Invocation[Numbered]] = []
        self.tool: Tool[Numbered] = Tool(
            name="count",
            description="Count.",
            arguments=Numbered,
            effect=effect,
            call=self.call,
        )

    async def call(self, invocation: Invocation[Numbered]) -> str:
        self.calls.append(invocation)
        return f"counted {invocation.arguments.n}"
