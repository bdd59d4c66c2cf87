"""The event loop on which a worker process serves its turns, hundreds at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from recovery.errors import ErrorCode
from recovery.fences import Fence
from recovery.serving import Desk, ServingLoop, fences_of
from turns import bounds, events, textlog, transitions
from turns.confirmed import confirmed
from turns.models import Turn
from turns.providers.types import TextProvider
from turns.requests import Requests
from turns.server import TurnServer
from turns.textlog import TextLog
from turns.tools.registry import Registry


class TurnHost(ServingLoop[TurnServer]):
    """The turns of this process. Those that a drain leaves over are interrupted."""

    word = "turn"
    model = Turn

    def __init__(
        self,
        *,
        owner: Callable[[], UUID],
        beat: Callable[[], None],
        provider: Callable[[], TextProvider],
        tools: Registry,
        requests: Requests,
        capacity: int = bounds.TURNS_PER_PROCESS,
        on_broken: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(owner=owner, beat=beat, capacity=capacity, on_broken=on_broken)
        self._make_provider = provider
        self._tools = tools
        self._requests = requests

    async def open(self) -> None:
        """Open the way to the provider and the text log."""
        self._provider = self._make_provider()
        self._text = TextLog(textlog.connect, events.announce_many)
        self._text.start()

    async def aclose(self) -> None:
        """Close both."""
        await self._text.stop()
        await self._provider.aclose()

    def server(self, pk: int, owner: UUID) -> TurnServer:
        """Return the server of one turn."""
        return TurnServer(
            pk,
            owner=owner,
            provider=self._provider,
            text=self._text,
            tools=self._tools,
            requests=self._requests,
        )

    async def let_go(self, fences: Sequence[Fence]) -> None:
        """Write no more text of these turns."""
        await self._text.abandon(fences)

    async def give_up(self, servers: Sequence[TurnServer]) -> Sequence[int]:
        """Interrupt these turns."""
        interrupt = partial(
            transitions.interrupt_own_turns, fences_of(servers), ErrorCode.RUNTIME_STOPPED
        )
        return await confirmed(interrupt, lambda: None)


_desk: Final = Desk(TurnHost.word)
serve_with: Final = _desk.serve_with
submit: Final = _desk.submit
