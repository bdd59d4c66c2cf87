"""Jobs served inside the test process: everything real but the model, which is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from recovery.executor import in_thread
from recovery.fences import Fence
from recovery.models import Runtime
from tests.factories import ConversationFactory, RuntimeFactory
from tests.simulators.client import Simulator
from tests.simulators.replies import Reply
from tests.simulators.responses_wire import tool_calls
from tests.support.jobs import delegate, report_text, require_job_terminal
from turns import tools as shipped
from turns.models import Conversation, ToolStep
from turns.providers.adapter import HttpTextProvider
from turns.providers.responses import ResponsesProvider
from turns.providers.types import TextProvider, ToolSchema
from turns.requests import Requests
from turns.tools.registry import Arguments, Effect, Invocation, Registry, Tool
from work.models import WorkJob, WorkProviderStep, WorkStep
from work.server import JobServer
from work.workspaces import OpenWorkspace, ToolsAlone, Workspace

CONTEXT_BYTES = 96 * 1024


def asking(kind: str, tools: Sequence[ToolSchema], briefing: str) -> Requests:
    """Return how a test asks its model."""
    return Requests(f"Do {kind}. {briefing}", CONTEXT_BYTES, None, tuple(tools))


class JobServing:
    """A runtime in this process that serves the jobs a test delegates."""

    def __init__(
        self, runtime: Runtime, provider: TextProvider, workspaces: Mapping[str, OpenWorkspace]
    ) -> None:
        self.runtime = runtime
        self.provider = provider
        self.workspaces = workspaces

    def server(self, job_id: int) -> JobServer:
        """Return a server for the job, not yet running."""
        return JobServer(
            job_id,
            owner=self.runtime.pk,
            provider=self.provider,
            workspaces=self.workspaces,
            asking=asking,
        )

    async def serve(self, job: WorkJob) -> WorkJob:
        """Serve the job until it is let go of; return it as it is then."""
        await self.server(job.pk).run()
        return await in_thread(lambda: WorkJob.objects.get(pk=job.pk))

    async def ask(
        self, goal: str = "Find out.", conversation: Conversation | None = None, **ask: Any
    ) -> WorkJob:
        """Return a job somebody delegated."""

        def admit() -> WorkJob:
            return delegate(conversation or ConversationFactory.create(), goal, **ask)

        return await in_thread(admit)


@asynccontextmanager
async def serving_jobs(
    base_url: str,
    *tools: Tool[Any],
    workspaces: Mapping[str, OpenWorkspace] | None = None,
    adapter: type[HttpTextProvider] = ResponsesProvider,
    **provider: Any,
) -> AsyncIterator[JobServing]:
    """Serve with the shipped tools and `tools`, against the model at `base_url`."""
    offered = Registry((*shipped.registry, *tools))

    async def open_deep_work(_job: WorkJob, _fence: Fence) -> Workspace:
        return ToolsAlone(offered)

    service = adapter(base_url=base_url, **provider)
    runtime = await in_thread(RuntimeFactory.create)
    try:
        yield JobServing(runtime, service, {"deep_work": open_deep_work, **(workspaces or {})})
    finally:
        await service.aclose()


async def steps_of(job: WorkJob) -> list[WorkStep]:
    """Return the job's calls in order."""
    return await in_thread(
        lambda: list(WorkStep.objects.filter(job_id=job.pk).order_by("sequence"))
    )


async def provider_steps_of(job: WorkJob) -> list[WorkProviderStep]:
    """Return the job's provider steps in order."""
    return await in_thread(
        lambda: list(WorkProviderStep.objects.filter(job_id=job.pk).order_by("sequence"))
    )


class Nothing(Arguments):
    pass


@dataclass
class Counter:
    """A tool that does nothing but count its calls."""

    effect: ToolStep.Effect = Effect.REVERSIBLE
    calls: list[Invocation[Nothing]] = field(default_factory=list)
    before: Callable[[Invocation[Nothing]], Any] | None = None

    @property
    def tool(self) -> Tool[Nothing]:
        return Tool(
            name="count",
            description="Count.",
            arguments=Nothing,
            effect=self.effect,
            call=self.call,
        )

    async def call(self, invocation: Invocation[Nothing]) -> str:
        self.calls.append(invocation)
        if self.before is not None:
            await in_thread(self.before, invocation)
        return "counted"


def counting(n: int, **options: Any) -> Reply:
    """Return the n-th response, which calls the counter."""
    return tool_calls((f"call_{n}", "count", "{}"), response_id=f"resp_{n}", **options)


async def ended(job: WorkJob) -> tuple[str, str]:
    """Return state and code of a job whose every row has ended."""
    await in_thread(require_job_terminal, job)
    return job.state, job.error_code


async def told(job: WorkJob) -> str:
    return await in_thread(report_text, job)


def offered(model: Simulator, index: int) -> list[str]:
    """Return the names of the tools that request `index` offered."""
    return [tool["name"] for tool in model.requests()[index].json.get("tools", [])]
