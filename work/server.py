"""The live runtime of one job: it claims, goes on from where the rows stand, and ends it once.

What an earlier claim committed is never done again: its report is appended, its calls have
their outcomes, and a call that was asked for and not started is started now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import UUID, uuid4

import structlog
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now

from recovery.errors import BoundExceeded, ErrorCode, Refused
from recovery.fences import Fence
from recovery.probes import areach
from recovery.servers import RowServer
from turns.confirmed import confirmed, read
from turns.providers.types import TextProvider
from turns.tool_loop import End, Ending, Progress, ToolLoop
from turns.tools.registry import Invocation
from turns.tools.runner import in_own_thread
from work import transitions
from work.coding.errors import WorkspaceLost
from work.dispatch import dispatch_job
from work.ledger import JobLedger, Standing, WindingUp, last_words
from work.limits import JobLimits
from work.models import WorkJob
from work.requests import AskingFor
from work.tools import JOB_TOOL_NAMES
from work.transitions.reports import bounded_report
from work.workspaces import OpenWorkspace, Workspace, clear_up

log = structlog.get_logger()

LIMITS: Final = frozenset(
    {ErrorCode.TOOL_CALL_LIMIT_REACHED, ErrorCode.PROVIDER_STEP_LIMIT_REACHED}
)


@dataclass(frozen=True, slots=True)
class JobEnding:
    """How a job is to end, and what is known of the provider step that is still open."""

    state: WorkJob.State
    error_code: ErrorCode | None = None
    response_id: str | None = None
    usage: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The claimed row, and how much of its time is left on the database's clock."""

    job: WorkJob
    seconds: float

    @classmethod
    def of(cls, job_id: int) -> Assignment:
        """Read it."""
        job = WorkJob.objects.filter(pk=job_id)
        left = ExpressionWrapper(F("deadline_at") - Now(), output_field=DurationField())
        seconds: timedelta = job.annotate(left=left).values_list("left", flat=True).get()
        return cls(job.get(), seconds.total_seconds())


_BROKEN: Final = JobEnding(WorkJob.State.FAILED, ErrorCode.INTERNAL_ERROR)
_CANCELLED: Final = JobEnding(WorkJob.State.CANCELLED)
_COMPLETED: Final = JobEnding(WorkJob.State.COMPLETED)
_USED_UP: Final = JobEnding(WorkJob.State.BUDGET_EXHAUSTED, ErrorCode.BUDGET_EXHAUSTED)
_OUT_OF_TIME: Final = JobEnding(WorkJob.State.BUDGET_EXHAUSTED, ErrorCode.DEADLINE_PASSED)


class JobServer(RowServer[JobEnding]):
    """Serves one job on the event loop of its process."""

    word = "job"

    def __init__(
        self,
        pk: int,
        *,
        owner: UUID,
        provider: TextProvider,
        workspaces: Mapping[str, OpenWorkspace],
        asking: AskingFor,
    ) -> None:
        super().__init__(pk, owner=owner)
        self._provider = provider
        self._workspaces = workspaces
        self._asking = asking
        self._is_winding_up = False
        self._workspace: Workspace | None = None
        self._ledger: JobLedger | None = None

    @property
    def said(self) -> str:
        """What the model said in an answer that was cut, where no row keeps it."""
        return self._ledger.said if self._ledger is not None else ""

    def cancel(self) -> None:
        """End the job as cancelled."""
        self.stop(_CANCELLED)

    def wind_up(self) -> None:
        """Start nothing more; give the job back once what runs has come to its outcome."""
        self._is_winding_up = True

    async def claim(self) -> Fence | None:
        """Claim the job."""
        if self._is_winding_up:
            return None
        token = uuid4()
        return await confirmed(
            partial(transitions.claim_job, self.pk, owner=self.owner, token=token),
            partial(transitions.claim_under, token),
        )

    async def serve(self, fence: Fence) -> Fence | None:
        """Have the job done; where its process is to stop, give it back as it stands."""
        assignment = await read(partial(Assignment.of, fence.pk))
        try:
            ending = await self._ending(fence, assignment)
        except WorkspaceLost:
            # So the machine says. Where the job is another's by now the database refuses this.
            log.error("job.workspace_lost", job_id=fence.pk)
            ending = JobEnding(WorkJob.State.FAILED, ErrorCode.WORKSPACE_FAILED)
        if ending is None:
            # before another may claim the job, nothing of ours works there any more
            await self._leave(ended=False)
            await give_back([fence], said={fence.pk: self.said})
            return fence
        await areach("job.finishing")
        await self._finish(fence, ending)
        return None

    async def finish_broken(self, fence: Fence) -> None:
        """End the job as failed, with an honest notice."""
        await self._finish(fence, _BROKEN)

    async def close(self, fence: Fence, *, ended: bool) -> None:  # noqa: ARG002 - the only one
        """Take down the workspace of a job that has ended; leave that of any other."""
        await self._leave(ended=ended)

    def _why_stop(self, workspace: Workspace) -> Exception | None:
        """Return why nothing more may be started, None while it may."""
        if self._is_winding_up:
            return WindingUp()
        return None if workspace.is_ours() else WorkspaceLost()

    async def _ending(self, fence: Fence, assignment: Assignment) -> JobEnding | None:
        """Have the job done; return how it is to end, None when it is to be given back."""
        work = self._work(fence, assignment.job)
        try:
            return await self.until_stopped(work, assignment.seconds, lambda: _OUT_OF_TIME)
        except WindingUp:
            return None

    async def _work(self, fence: Fence, job: WorkJob) -> JobEnding:
        """Go on from where the job stands."""
        limits = JobLimits.stored(job.budget)
        standing = await read(partial(Standing.of, fence, limits))
        if standing.is_reported:
            return _COMPLETED
        try:
            workspace = await self._workspaces[job.kind](job, fence)
        except Refused as refused:
            return JobEnding(WorkJob.State.FAILED, refused.code)
        self._workspace = workspace
        limit = standing.progress.limit
        if not standing.has_answered:
            ending = await self._asking_and_calling(fence, job, workspace, standing.progress)
            if ending.end != End.COMPLETED and ending.error_code not in LIMITS:
                return _as_said(ending)
            limit = ending.limit or ending.error_code
        if limit is not None:
            # its notice tells the last words
            return _USED_UP
        await self._report(fence, workspace, limits.report_bytes)
        return _COMPLETED

    async def _asking_and_calling(
        self, fence: Fence, job: WorkJob, workspace: Workspace, progress: Progress
    ) -> Ending:
        """Let the model work until it has answered or cannot go on; store its answer."""
        tools = workspace.registry().without(JOB_TOOL_NAMES, ErrorCode.WORK_RECURSION_REFUSED)
        self._ledger = ledger = JobLedger(
            fence,
            job,
            requests=self._asking(job.kind, tools.schemas(), workspace.briefing),
            why_stop=partial(self._why_stop, workspace),
        )
        loop = ToolLoop(
            ledger,
            provider=self._provider,
            tools=tools,
            invocation=partial(
                Invocation,
                job.person_id,
                job.conversation_id,
                job.before_message_id,
                asked_at=job.created_at,
            ),
            provider_steps_max=JobLimits.stored(job.budget).provider_steps,
            progress=progress,
        )
        ending = await loop.run()
        answer = ending.response
        if answer is not None and (ending.end == End.COMPLETED or ending.error_code in LIMITS):
            assert ending.step_id is not None  # noqa: S101 - the step of this response
            store = partial(ledger.complete_request, ending.step_id, answer, ())
            try:
                await confirmed(store, lambda: None)
            except (BoundExceeded, Refused) as refused:
                # of what contradicts itself only the stream was held to a bound as it came
                return replace(ending, end=End.FAILED, error_code=refused.code)
            await areach("job.answered")
        return ending

    async def _report(self, fence: Fence, workspace: Workspace, most_bytes: int) -> None:
        """Append what the model said last, and what the work leaves behind, as the report."""
        said = await read(partial(last_words, fence.pk))
        left = await workspace.take_down()
        await areach("job.workspace_closed")
        # a long report is cut, what it leaves behind is not
        kept = bounded_report(said, most_bytes - len(f"\n\n{left}".encode())).text
        report = f"{kept}\n\n{left}".strip()
        # the same report twice is one report
        await confirmed(partial(transitions.append_report, fence, report), lambda: None)
        await areach("job.report_appended")

    async def _leave(self, *, ended: bool) -> None:
        """Leave the workspace, once; a job that has ended leaves none, not that of an earlier
        claim either."""
        workspace, self._workspace = self._workspace, None
        try:
            if workspace is not None:
                await (workspace.close() if ended else workspace.release())
            elif ended:
                await in_own_thread(partial(clear_up, [self.pk]))
        except WorkspaceLost:
            log.info("job.workspace_closed_before", job_id=self.pk)
        except Exception as error:
            # The rows say how the job stands; the next host to start clears up.
            log.error("job.workspace_left", job_id=self.pk, exc_info=error)

    async def _finish(self, fence: Fence, ending: JobEnding) -> None:
        finish = partial(
            transitions.finish_job,
            fence,
            ending.state,
            reported=ending.state == WorkJob.State.COMPLETED,
            error_code=ending.error_code,
            response_id=ending.response_id,
            usage=ending.usage,
            said=self.said,
        )
        job = await confirmed(finish, partial(_ended, fence))
        log.info("job.ended", job_id=job.pk, state=job.state, error_code=job.error_code or None)


async def give_back(
    fences: Sequence[Fence], *, said: Mapping[int, str] | None = None
) -> list[int]:
    """Release what these claims still hold, for other workers; return the jobs that wait.

    One that ends instead shows what its model has `said` last, where that is known.
    """
    release = partial(transitions.release_own_jobs, fences, said=said)
    released = await confirmed(release, lambda: None)
    for pk in released:
        log.info("job.given_back", job_id=pk)
        dispatch_job(pk)
    return released


def _as_said(ending: Ending) -> JobEnding:
    """Return the end of a job whose work did not come to its own end."""
    if ending.end == End.CANCELLED and ending.error_code is None:
        return _CANCELLED
    # a service that gives its response up was not asked to by a person
    return JobEnding(WorkJob.State.FAILED, ending.error_code, ending.response_id, ending.usage)


def _ended(fence: Fence) -> WorkJob | None:
    """Return the job if it has ended under this claim."""
    job = WorkJob.objects.filter(pk=fence.pk, claim_token=fence.token).first()
    return job if job is not None and job.state in WorkJob.LIFECYCLE.terminal else None
