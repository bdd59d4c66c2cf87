"""One job, any order of events: the contract's sentences hold after each of them.

Workers die, are drained and come back; the machine keeps its own small idea of the job. What it
expects to be refused must be refused and leave every row as it was; all else must succeed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from django.db.models.functions import Now
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from recovery.models import Runtime
from tests import factories as make
from tests.support.settled import every_row
from turns.models import Conversation
from turns.transitions import RequestedCall
from work import transitions
from work.models import JobReport, JobReportMessage, WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery

REFUSALS = (StaleFence, IllegalTransition, Refused)
ENDED_BY_WORKER = st.sampled_from([WorkJob.State.COMPLETED, WorkJob.State.FAILED])


@dataclass
class Believed:
    """What the machine believes of the job."""

    pk: int
    state: str = "queued"
    cancel: bool = False
    fence: Fence | None = None
    request: int | None = None  # the provider step under way
    requests: int = 0
    reported: bool = False
    claims: int = 0
    given_back: int = 0
    calls: dict[int, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in {"queued", "running"}

    @property
    def may_start(self) -> bool:
        return self.state == "running" and not self.cancel

    def in_state(self, *states: str) -> list[int]:
        return [pk for pk, state in self.calls.items() if state in states]


class JobLifecycle(RuleBasedStateMachine):
    """Person, workers, provider, tools, deaths, drains and recovery, in any order."""

    job: Believed
    runtime: Runtime

    @initialize(steps=st.integers(0, 12))
    def begin(self, steps: int) -> None:
        """Begin anywhere: shallow orders are many, the interesting ones lie deep."""
        self.conversation = make.ConversationFactory.create()
        self.runtime = make.RuntimeFactory.create()
        self.old: list[Fence] = []
        self.started: list[int] = []
        self.outcomes: dict[int, str] = {}
        self.generation = 0
        self.deadline: object = None
        ask = transitions.JobAsk(WorkJob.Kind.DEEP_WORK, "Find out.")
        admitted = transitions.admit_job(
            self.conversation.owner_id, self.conversation.pk, ask, client_key="k"
        )
        self.ask = ask
        self.job = Believed(admitted.job.pk)
        self.get_on(steps)

    def refused(self, act: Callable[[], object], *kinds: type[Exception]) -> None:
        before = every_row()
        with pytest.raises(kinds or REFUSALS):
            act()
        assert every_row() == before

    @property
    def fence(self) -> Fence:
        assert self.job.fence is not None
        return self.job.fence

    # --- the person ---

    @rule()
    def ask_again(self) -> None:
        """The same key is the same job, whatever became of it."""
        before = every_row()
        repeated = transitions.admit_job(
            self.conversation.owner_id, self.conversation.pk, self.ask, client_key="k"
        )
        assert (repeated.job.pk, repeated.created) == (self.job.pk, False)
        assert every_row() == before

    @rule()
    def cancel(self) -> None:
        nobody_works = self.job.state == "queued" or self.is_orphan()
        _, accepted = transitions.request_cancel(self.conversation.owner_id, self.job.pk)
        assert accepted == self.job.is_open
        if self.job.is_open:
            self.job.cancel = True
            if nobody_works:
                self.end("cancelled")

    # --- the worker ---

    @rule()
    def claim(self) -> None:
        """A delivery: the first of them claims, whoever it reaches."""
        fence = transitions.claim_job(self.job.pk, owner=self.runtime.pk)
        may = self.job.state == "queued" and not self.job.cancel and self.is_alive()
        assert (fence is not None) == may
        if fence is not None:
            self.job.fence, self.job.state = fence, "running"
            self.job.claims += 1

    @precondition(lambda self: self.job.fence is not None)
    @rule()
    def ask_the_model(self) -> None:
        job, facts = self.job, make.request_facts()

        def start() -> WorkProviderStep:
            return transitions.start_provider_step(self.fence, facts)

        if job.may_start and job.request is None and not job.in_state("requested", "running"):
            job.request = start().pk
            job.requests += 1
        else:
            self.refused(start)

    @precondition(lambda self: self.job.request is not None)
    @rule(count=st.integers(0, 2))
    def answer(self, count: int) -> None:
        job, request = self.job, self.job.request
        assert request is not None
        calls = [
            RequestedCall(f"{job.requests}:{n}", "", "webhook_post", '{"n": 1}')
            for n in range(count)
        ]

        def complete() -> list[WorkStep]:
            return transitions.complete_provider_step(
                self.fence, request, response_id="r", usage={"output_tokens": 1}, text="So.",
                calls=calls,
            )  # fmt: skip

        if job.state == "running":
            stored = complete()
            assert [step.pk for step in complete()] == [step.pk for step in stored]
            job.calls.update({step.pk: "requested" for step in stored})
            job.request = None
        else:
            self.refused(complete, StaleFence)

    @precondition(lambda self: self.job.calls and self.job.fence is not None)
    @rule(data=st.data())
    def start_tool(self, data: st.DataObject) -> None:
        pk = data.draw(st.sampled_from(sorted(self.job.calls)))
        if self.job.may_start and self.job.calls[pk] == "requested":
            transitions.start_step(self.fence, pk)
            self.job.calls[pk] = "running"
            self.started.append(pk)
        else:
            self.refused(lambda: transitions.start_step(self.fence, pk))

    @precondition(lambda self: self.job.calls and self.job.fence is not None)
    @rule(data=st.data())
    def finish_tool(self, data: st.DataObject) -> None:
        pk = data.draw(st.sampled_from(sorted(self.job.calls)))

        def finish() -> WorkStep:
            return transitions.finish_step(
                self.fence, pk, WorkStep.State.SUCCEEDED, result="found"
            )

        if self.job.state == "running" and self.job.calls[pk] in {"running", "succeeded"}:
            finish()
            self.job.calls[pk] = "succeeded"
            self.outcomes[pk] = "found"
        else:
            self.refused(finish)

    @precondition(lambda self: self.job.fence is not None)
    @rule()
    def report(self) -> None:
        def append() -> JobReport:
            return transitions.append_report(self.fence, "It is blue.")

        if self.job.state == "running":
            append()
            self.job.reported = True
        else:
            self.refused(append, StaleFence)

    @precondition(lambda self: self.job.fence is not None)
    @rule(state=ENDED_BY_WORKER)
    def finish(self, state: WorkJob.State) -> None:
        job = self.job
        is_busy = job.request is not None or bool(job.in_state("requested", "running"))
        completes = state == WorkJob.State.COMPLETED and not job.cancel

        def act() -> WorkJob:
            return transitions.finish_job(self.fence, state)

        if job.state != "running" or (completes and is_busy):
            self.refused(act)
        else:
            act()
            self.end("cancelled" if job.cancel else state.value)

    @precondition(lambda self: self.job.fence is not None)
    @rule()
    def drain(self) -> None:
        """A worker that stops gives the job back, which is not charged."""
        was_running = self.job.state == "running"
        released = transitions.release_own_jobs([self.fence])
        if was_running and self.job.cancel:
            assert not released
            self.end("cancelled")
        elif was_running:
            assert released == [self.job.pk]
            self.job.given_back += 1
            self.release()
        else:
            assert not released

    @rule(steps=st.integers(1, 8))
    def get_on(self, steps: int) -> None:
        """Let a living worker take the next steps of the protocol, up to its end."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        job = self.job
        if not job.is_open:
            return
        if job.state == "queued" and not self.is_alive():
            self.restart()
        elif job.state == "queued":
            self.claim()
        elif self.is_orphan():
            self.recover()
        elif job.cancel:
            self.finish(WorkJob.State.FAILED)
        elif waiting := job.in_state("requested"):
            transitions.start_step(self.fence, waiting[0])
            job.calls[waiting[0]] = "running"
            self.started.append(waiting[0])
        elif busy := job.in_state("running"):
            transitions.finish_step(
                self.fence, busy[0], WorkStep.State.SUCCEEDED, result="found"
            )
            job.calls[busy[0]] = "succeeded"
            self.outcomes[busy[0]] = "found"
        elif job.request is None and job.requests < 3:
            self.ask_the_model()
        elif job.request is not None:
            self.answer(2 if job.requests < 3 else 0)
        else:
            self.report()

    # --- death and recovery ---

    @rule()
    def die(self) -> None:
        Runtime.objects.filter(pk=self.runtime.pk, stopped_at=None).update(
            stopped_at=Now(), stop_reason="runtime_lost"
        )

    @precondition(lambda self: not self.is_alive())
    @rule()
    def restart(self) -> None:
        self.runtime = make.RuntimeFactory.create()

    @rule()
    def recover(self) -> None:
        orphan = self.is_orphan()
        report = WorkRecovery().settle_orphans()
        assert (str(self.job.pk) in [row["id"] for row in report.rows]) == orphan
        if orphan:
            used = self.job.claims - self.job.given_back - 1
            if self.job.cancel:
                self.end("cancelled")
            elif used >= ADOPTION_ATTEMPTS:
                self.end("interrupted")
            else:
                self.release()
        before = every_row()
        assert WorkRecovery().settle_orphans().examined == 0
        assert every_row() == before

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def wake_a_stale_owner(self, data: st.DataObject) -> None:
        """failure H11"""
        fence = data.draw(st.sampled_from(self.old))
        for act in (
            lambda: transitions.finish_job(fence, WorkJob.State.FAILED),
            lambda: transitions.append_report(fence, "late"),
            lambda: transitions.checkpoint_session(fence, "late", 1),
            lambda: transitions.start_provider_step(fence, make.request_facts()),
            *(lambda pk=pk: transitions.start_step(fence, pk) for pk in self.job.calls),
        ):
            self.refused(act, StaleFence)
        assert not transitions.release_own_jobs([fence])

    # --- what always holds ---

    @invariant()
    def rows_say_what_happened(self) -> None:
        if not hasattr(self, "job"):
            return
        believed, job = self.job, WorkJob.objects.get(pk=self.job.pk)
        assert job.state == believed.state
        assert (job.attempts, job.planned_releases) == (believed.claims, believed.given_back)
        steps = {step.pk: step for step in WorkStep.objects.filter(job_id=job.pk)}
        assert {pk: step.state for pk, step in steps.items()} == believed.calls
        for step in steps.values():
            assert step.state != "requested" or step.generation == job.generation
        shown = JobReportMessage.objects.filter(report__job_id=job.pk)
        if believed.is_open:
            assert not shown.exists()
        else:
            kind = "result" if job.state == "completed" else "notice"
            wanted = 1 if kind == "notice" or believed.reported else 0
            assert shown.filter(report__kind=kind).count() == shown.count() == wanted
            for model in (WorkProviderStep, WorkStep):
                assert not model._default_manager.filter(
                    job_id=job.pk, finished_at=None
                ).exists()

    @invariant()
    def nothing_is_done_twice_and_nothing_goes_back(self) -> None:
        if not hasattr(self, "job"):
            return
        job = WorkJob.objects.get(pk=self.job.pk)
        assert len(set(self.started)) == len(self.started)
        for pk, result in self.outcomes.items():
            assert WorkStep.objects.get(pk=pk).result == result
        assert job.generation >= self.generation
        self.generation = job.generation
        assert self.deadline in {None, job.deadline_at}
        self.deadline = job.deadline_at

    def release(self) -> None:
        """Note that the job waits for another worker."""
        job = self.job
        self.old.append(self.fence)
        job.state, job.request, job.fence = "queued", None, None
        for pk in job.in_state("running"):
            job.calls[pk] = "interrupted"

    def end(self, state: str) -> None:
        """Note that the job has ended like this."""
        job = self.job
        if job.fence is not None:
            self.old.append(job.fence)
        for pk in job.in_state("requested", "running"):
            job.calls[pk] = WorkStep.objects.get(pk=pk).state
            assert job.calls[pk] in WorkStep.LIFECYCLE.terminal
        job.state, job.request = state, None

    def is_alive(self) -> bool:
        return Runtime.objects.living().filter(pk=self.runtime.pk).exists()

    def is_orphan(self) -> bool:
        return WorkJob.objects.orphaned().filter(pk=self.job.pk).exists()

    def teardown(self) -> None:
        """Remove what this run made, so that the next one looks at its own rows."""
        with suppress(AttributeError):
            Conversation.objects.filter(pk=self.conversation.pk).delete()


@pytest.mark.timeout(300)
@pytest.mark.django_db(transaction=True)
def test_the_promises_of_a_job_hold_in_every_order_of_events() -> None:
    run_state_machine_as_test(
        JobLifecycle,
        settings=settings(
            max_examples=12,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
