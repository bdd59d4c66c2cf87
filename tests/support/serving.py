"""Turns served inside the test process: everything real but the model, which is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from recovery.executor import in_thread
from recovery.models import Runtime
from tests.factories import ConversationFactory, RuntimeFactory
from tests.support.turns import ask
from turns import textlog
from turns import tools as shipped
from turns.models import Conversation, ProviderStep, Receipt, ToolStep, Turn
from turns.providers.adapter import HttpTextProvider
from turns.providers.responses import ResponsesProvider
from turns.providers.types import TextProvider
from turns.requests import Requests
from turns.server import TurnServer
from turns.textlog import TextLog
from turns.tools.registry import Registry, Tool

CONTEXT_BYTES = 96 * 1024


class Serving:
    """A runtime in this process that serves the turns a test asks for."""

    def __init__(
        self, runtime: Runtime, provider: TextProvider, text: TextLog, tools: Registry
    ) -> None:
        self.runtime = runtime
        self.provider = provider
        self.text = text
        self.tools = tools
        self.announced: list[int] = []

    def server(self, turn_id: int) -> TurnServer:
        """Return a server for the turn, not yet running."""
        requests = Requests("Be brief.", CONTEXT_BYTES, None, self.tools.schemas())
        return TurnServer(
            turn_id,
            owner=self.runtime.pk,
            provider=self.provider,
            text=self.text,
            tools=self.tools,
            requests=requests,
        )

    async def serve(self, turn: Turn) -> Turn:
        """Serve the turn to its end; return it as it is then."""
        await self.server(turn.pk).run()
        return await in_thread(lambda: Turn.objects.get(pk=turn.pk))

    async def ask(self, text: str = "?", conversation: Conversation | None = None) -> Turn:
        """Return a turn somebody asked for."""

        def admit() -> Turn:
            return ask(conversation or ConversationFactory.create(), text)

        return await in_thread(admit)


@asynccontextmanager
async def serving(
    base_url: str,
    *tools: Tool[Any],
    adapter: type[HttpTextProvider] = ResponsesProvider,
    **provider: Any,
) -> AsyncIterator[Serving]:
    """Serve with the shipped tools and `tools`, against the model at `base_url`."""
    offered = Registry()
    for tool in (*shipped.registry, *tools):
        offered.register(tool)
    announced: list[int] = []
    text = TextLog(textlog.connect, announced.extend)
    service = adapter(base_url=base_url, **provider)
    runtime = await in_thread(RuntimeFactory.create)
    serving = Serving(runtime, service, text, offered)
    serving.announced = announced
    text.start()
    try:
        yield serving
    finally:
        await text.stop()
        await service.aclose()


async def tool_steps(turn: Turn) -> list[ToolStep]:
    """Return the turn's tool steps in order."""
    return await in_thread(
        lambda: list(ToolStep.objects.filter(turn_id=turn.pk).order_by("sequence"))
    )


async def provider_steps(turn: Turn) -> list[ProviderStep]:
    """Return the turn's provider steps in order."""
    return await in_thread(
        lambda: list(ProviderStep.objects.filter(turn_id=turn.pk).order_by("sequence"))
    )


async def receipt_of(turn: Turn) -> Receipt:
    """Return the turn's receipt."""
    return await in_thread(lambda: Receipt.objects.get(turn_id=turn.pk))
