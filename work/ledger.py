"""What a job keeps of its work under one claim, and how far it had come when that began."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from recovery.blanks import shows_something
from recovery.bounds import cut_utf8
from recovery.errors import BoundExceeded, ErrorCode
from recovery.fences import Fence
from recovery.statements import stored
from turns.models.steps import ToolStepFields
from turns.providers.types import Completed, TextRequest
from turns.requests import Requests
from turns.tool_loop import Progress
from turns.transitions import CallOutcome, RequestedCall, RequestFacts
from turns.transitions.calls import called_by
from work import requests as job_requests
from work import transitions
from work.limits import JobLimits
from work.models import WorkJob, WorkProviderStep, WorkStep


class WindingUp(Exception):
    """The process is to stop: nothing more is started, and what is committed stays."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a job has come: what a claim finds when it begins.

    `has_answered` is true when the last response left nothing to do but to end the job.
    """

    progress: Progress
    is_reported: bool
    has_answered: bool

    @classmethod
    def of(cls, fence: Fence, limits: JobLimits) -> Standing:
        """Read it."""
        steps = list(WorkProviderStep.objects.filter(job_id=fence.pk).order_by("sequence"))
        calls = list(WorkStep.objects.filter(job_id=fence.pk).order_by("sequence"))
        limit = None
        if len(steps) >= limits.provider_steps:
            limit = ErrorCode.PROVIDER_STEP_LIMIT_REACHED
        elif any(call.error_code == ErrorCode.TOOL_CALL_LIMIT_REACHED for call in calls):
            limit = ErrorCode.TOOL_CALL_LIMIT_REACHED
        has_answered = False
        if steps and steps[-1].state == WorkProviderStep.State.COMPLETED:
            was_last = limit is not None and not steps[-1].offers_tools
            asked_for_calls = any(called_by(steps[-1], calls))
            has_answered = was_last or (shows_something(steps[-1].text) and not asked_for_calls)
        progress = Progress(
            requests=len(steps),
            waiting=[call for call in calls if call.state == WorkStep.State.REQUESTED],
            has_spoken=any(shows_something(step.text) for step in steps),
            limit=limit,
        )
        return cls(progress, transitions.report_of(fence.pk) is not None, has_answered)


def last_words(job_id: int) -> str:
    """Return what the job's model said last, an empty text when it never spoke."""
    steps = WorkProviderStep.objects.filter(job_id=job_id).order_by("-sequence")
    return next(filter(shows_something, steps.values_list("text", flat=True)), "")


class JobLedger:
    """The rows of one job under one fence. Nothing more is started once `why_stop` gives a
    reason, which is raised then."""

    word: Final = "job"

    def __init__(
        self,
        fence: Fence,
        job: WorkJob,
        *,
        requests: Requests,
        why_stop: Callable[[], Exception | None] = lambda: None,
    ) -> None:
        self._fence = fence
        self._job = job
        self._limits = JobLimits.stored(job.budget)
        self._requests = requests
        self._why_stop = why_stop
        self._response_bytes = 0
        self._saying: list[str] = []

    @property
    def said(self) -> str:
        """What the response that is not stored yet has said so far."""
        said = "".join(self._saying).strip()
        return said if shows_something(said) else ""

    def request(
        self, sequence: int, *, provider_api: str, offer_tools: bool
    ) -> tuple[TextRequest, RequestFacts]:
        """Return the next request."""
        return self._requests.around(
            partial(job_requests.read, self._job),
            model=self._job.model,
            step=sequence,
            provider_api=provider_api,
            offer_tools=offer_tools,
        )

    def start_request(self, _sequence: int, facts: RequestFacts) -> WorkProviderStep:
        """Store the next provider step."""
        self._require_going_on()
        return transitions.start_provider_step(self._fence, facts)

    def request_at(self, sequence: int) -> WorkProviderStep | None:
        """Return the open provider step number `sequence`."""
        return transitions.provider_step_at(self._fence, sequence)

    def complete_request(
        self, step_id: int, response: Completed, calls: Sequence[RequestedCall]
    ) -> Sequence[WorkStep]:
        """Store what a response said and the calls it asked for."""
        steps = transitions.complete_provider_step(
            self._fence,
            step_id,
            response_id=response.response_id,
            usage=response.usage,
            text=response.text,
            calls=calls,
            anomaly_count=response.anomalies,
        )
        # a row keeps it now
        self._saying.clear()
        return steps

    def move_calls(
        self, ended: Sequence[CallOutcome], starting: Sequence[ToolStepFields]
    ) -> Sequence[WorkStep]:
        """Store what came of calls, and mark others as running."""
        stop = self._why_stop() if starting else None
        started: Sequence[WorkStep] = ()
        if ended or stop is None:
            starts = [step.pk for step in starting] if stop is None else []
            started = transitions.move_steps(self._fence, ended=ended, starting=starts)
        if stop is not None:
            raise stop
        asked = {step.pk: step for step in starting}
        return [stored(WorkStep, vars(step), earlier=asked[step.pk]) for step in started]

    def running_calls(self, steps: Sequence[ToolStepFields]) -> Sequence[WorkStep] | None:
        """Return the steps if they run."""
        running = transitions.running_steps(self._fence, [step.pk for step in steps])
        return running if len(running) == len(steps) > 0 else None

    async def write(self, text: str) -> None:
        """Hold what one response says. It is stored whole, once the response has ended."""
        room = self._limits.text_bytes - self._response_bytes
        self._response_bytes += len(text.encode())
        if self._response_bytes > self._limits.text_bytes:
            self._saying.append(cut_utf8(text, room))
            raise BoundExceeded(ErrorCode.RESPONSE_TOO_LARGE)
        self._saying.append(text)

    async def flushed(self) -> None:
        """Begin to count anew: the response has ended."""
        self._response_bytes = 0

    def _require_going_on(self) -> None:
        if (stop := self._why_stop()) is not None:
            raise stop
