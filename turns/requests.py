"""The next request of a turn or job, put together from committed rows alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, Self

from django.conf import settings

from turns import history
from turns.history import History
from turns.models import Turn
from turns.providers.types import TextRequest, ToolSchema
from turns.transitions import RequestFacts

INSTRUCTIONS: Final = (
    "You are a helpful assistant. Answer in the language of the person, briefly and honestly. "
    "Use a tool only when it helps. If a tool's result says that its outcome is unknown, say "
    "so and do not call it again unless the person asks."
)
# Added to the last request of work that has used up its calls.
REPORT_INSTRUCTIONS: Final = (
    "You can call no more tools. Tell the person what you found or did, and what is missing."
)
# For the small model that runs on this machine, which knows no tools and rambles.
LOCAL_INSTRUCTIONS: Final = "You are a helpful assistant. Answer briefly."
LOCAL_OUTPUT_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Requests:
    """How this installation asks its model: the words around the history, and the room for
    it.
    """

    instructions: str
    context_bytes: int
    max_output_tokens: int | None
    tools: tuple[ToolSchema, ...]

    @classmethod
    def from_settings(
        cls, tools: Sequence[ToolSchema], *, instructions: str = INSTRUCTIONS
    ) -> Self:
        """Return it as the settings describe it."""
        if settings.LLM_API == "local":
            return cls(LOCAL_INSTRUCTIONS, settings.LLM_CONTEXT_BYTES, LOCAL_OUTPUT_TOKENS, ())
        return cls(instructions, settings.LLM_CONTEXT_BYTES, None, tuple(tools))

    def build(
        self, turn_id: int, *, step: int, provider_api: str, offer_tools: bool
    ) -> tuple[TextRequest, RequestFacts]:
        """Return the request of provider step `step` of a turn, and what is recorded of it."""
        turn = Turn.objects.get(pk=turn_id)
        return self.around(
            partial(history.read, turn),
            model=turn.model,
            step=step,
            provider_api=provider_api,
            offer_tools=offer_tools,
        )

    def around(
        self,
        tell: Callable[[int], History],
        *,
        model: str,
        step: int,
        provider_api: str,
        offer_tools: bool,
    ) -> tuple[TextRequest, RequestFacts]:
        """Return a request that tells what `tell` returns for the bytes there is room for.

        One that offers no tools where others did is the last, and asks for a report.
        """
        tools = self.tools if offer_tools else ()
        instructions = self.instructions
        if not offer_tools:
            instructions = f"{instructions}\n{REPORT_INSTRUCTIONS}"
        overhead = len(instructions.encode()) + sum(
            len(json.dumps(asdict(tool))) for tool in tools
        )
        told = tell(self.context_bytes - overhead)
        request = TextRequest(
            model=model,
            instructions=instructions,
            items=told.items,
            tools=tools,
            parallel_tool_calls=True,
            max_output_tokens=self.max_output_tokens,
            step=step,
        )
        facts = history.facts(
            request, provider_api=provider_api, message_count=told.message_count
        )
        return request, facts
