"""Delegated jobs, any order of events: the contract's sentences hold after each of them.

What the machine expects to be refused must be refused and leave every row as it was; all else
must succeed. What it believes, and what must hold, is in `tests.stateful.job_beliefs`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db.models.functions import Now
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from recovery.bounds import ADOPTION_ATTEMPTS
from recovery.errors import ErrorCode, StaleFence
from recovery.models import Runtime
from tests import factories as make
from tests.stateful.job_beliefs import ASK, JobBeliefs
from tests.support.job_transitions import call, complete
from tests.support.jobs import every_job_row, pass_queue_deadline
from work import transitions
from work.models import JobReport, WorkJob, WorkProviderStep, WorkStep
from work.recovery import WorkRecovery

SUCCEEDED = WorkStep.State.SUCCEEDED


class JobLifecycle(JobBeliefs):
    """Person, worker, model, tools, deploys, death and recovery, in any order."""

    @initialize(steps=st.integers(0, 14), deaths=st.integers(0, 4))
    def begin(self, steps: int, deaths: int) -> None:
        """Begin anywhere: shallow orders are many, the interesting ones lie deep."""
        self.conversation = make.ConversationFactory.create()
        self.runtime = make.RuntimeFactory.create()
        self.past = []
        self.stale = []
        self.started = []
        self.outcomes = {}
        self.revision = 0
        self.job = self.admitted("0")
        for _ in range(deaths):
            self.get_on(2)
            self.die()
            self.recover()
        self.get_on(steps)

    # --- the person ---

    @rule()
    def delegate(self) -> None:
        """Ask for another job; ask for the same again, which is the same."""
        before = every_job_row()
        again = transitions.admit_job(
            self.conversation.owner_id, self.conversation.pk, ASK, client_key=self.job.key
        )
        assert (again.created, again.job.pk) == (False, self.job.pk)
        assert every_job_row() == before
        if not self.job.is_open:
            self.past.append(self.job)
            self.job = self.admitted(str(len(self.past)))

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

    @rule(many=st.booleans())
    def claim(self, *, many: bool) -> None:
        job = self.job
        if many:
            claimed = transitions.claim_jobs(owner=self.runtime.pk, limit=3)
            fence = claimed[0] if claimed else None
        else:
            fence = transitions.claim_job(job.pk, owner=self.runtime.pk)
        assert (fence is not None) == (job.state == "queued" and self.is_alive())
        if fence is None:
            return
        job.fence, job.state = fence, "running"
        job.generation += 1
        job.attempts += 1
        assert (fence.pk, fence.generation) == (job.pk, job.generation)
        row = self.row()
        job.deadline = job.deadline or row.deadline_at
        assert [step.call_id for step in transitions.requested_steps(fence)] == (
            job.open_calls()
        )

    @precondition(lambda self: self.job.fence is not None)
    @rule()
    def request(self) -> None:
        job = self.job

        def act() -> WorkProviderStep:
            return transitions.start_provider_step(self.fence, make.request_facts())

        if job.may_start and job.step is None and not job.open_calls():
            job.step = act()
            job.requests += 1
            assert job.step.sequence == job.requests
        else:
            self.refused(act)

    @precondition(lambda self: self.job.step is not None)
    @rule(count=st.integers(0, 3), unknown=st.booleans())
    def respond(self, count: int, *, unknown: bool) -> None:
        job, step = self.job, self.job.step
        assert step is not None
        state = WorkStep.State.UNAVAILABLE if unknown else WorkStep.State.REQUESTED
        code = ErrorCode.UNKNOWN_TOOL if unknown else None
        calls = [
            call(f"{job.requests}:{n}", state=state, error_code=code) for n in range(count)
        ]

        if job.is_running:
            told = complete(self.fence, step, *calls)
            assert [asked.call_id for asked in told] == [asked.call_id for asked in calls]
            assert len(complete(self.fence, step, *calls)) == len(calls)  # delivered twice
            job.calls.update({asked.call_id: state.value for asked in calls})
            job.step = None
        else:
            self.refused(lambda: complete(self.fence, step, *calls), StaleFence)

    @precondition(lambda self: self.job.calls and self.job.fence)
    @rule(data=st.data())
    def start_a_call(self, data: st.DataObject) -> None:
        self.start(data.draw(st.sampled_from(sorted(self.job.calls))))

    def start(self, name: str) -> None:
        step = self.step_of(name)
        if self.job.may_start and self.job.calls[name] == "requested":
            transitions.start_step(self.fence, step.pk)
            self.job.calls[name] = "running"
            self.started.append(step.pk)
        else:
            self.refused(lambda: transitions.start_step(self.fence, step.pk))

    @precondition(lambda self: self.job.calls and self.job.fence)
    @rule(data=st.data(), result=st.sampled_from(["found", "nothing"]))
    def end_a_call(self, data: st.DataObject, result: str) -> None:
        self.finish_call(data.draw(st.sampled_from(sorted(self.job.calls))), result)

    def finish_call(self, name: str, result: str) -> None:
        step = self.step_of(name)

        def act() -> WorkStep:
            return transitions.finish_step(self.fence, step.pk, SUCCEEDED, result=result)

        if self.job.is_running and self.job.calls[name] == "running":
            act()
            self.job.calls[name] = "succeeded"
            self.outcomes[step.pk] = result
        elif self.job.is_running and self.outcomes.get(step.pk) == result:
            assert act().result == result
        else:
            self.refused(act)

    def step_of(self, name: str) -> WorkStep:
        return WorkStep.objects.get(job_id=self.job.pk, call_id=name)

    @precondition(lambda self: self.job.fence is not None)
    @rule(cursor=st.integers(0, 9))
    def checkpoint(self, cursor: int) -> None:
        def act() -> None:
            transitions.checkpoint_session(self.fence, "session", cursor)

        if self.job.is_running:
            act()
            assert self.row().acp_cursor == cursor
        else:
            self.refused(act, StaleFence)

    @precondition(lambda self: self.job.fence is not None)
    @rule(text=st.sampled_from(["Found it.", "Found nothing."]))
    def report(self, text: str) -> None:
        def act() -> JobReport:
            return transitions.append_report(self.fence, text)

        if self.job.is_running and self.job.report in {"", text}:
            assert act().text == text
            self.job.report = text
        else:
            self.refused(act)

    @precondition(lambda self: self.job.fence is not None)
    @rule(
        state=st.sampled_from(["completed", "failed", "budget_exhausted"]), many=st.booleans()
    )
    def finish(self, state: str, *, many: bool) -> None:
        job, wanted = self.job, WorkJob.State(state)
        completes = state == "completed" and not job.cancel
        is_refused = not job.is_running or (completes and self.has_open_steps())
        if many and state == "completed":
            ended = transitions.finish_jobs([self.fence], wanted)
            assert bool(ended) == (completes and not is_refused)
            if ended:
                self.end(state)
        elif is_refused:
            self.refused(lambda: transitions.finish_job(self.fence, wanted))
        else:
            transitions.finish_job(self.fence, wanted)
            self.end("cancelled" if job.cancel else state)

    @precondition(lambda self: self.job.fence is not None)
    @rule()
    def drain(self) -> None:
        released = transitions.release_own_jobs([self.fence])
        assert bool(released) == self.job.may_start
        if released:
            self.job.planned += 1
            self.release()
        elif self.job.is_running:
            self.end("cancelled")

    @rule(steps=st.integers(1, 8))
    def get_on(self, steps: int) -> None:
        """Let a living worker take the next steps of the protocol, up to its end."""
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        job = self.job
        if not job.is_open:
            self.delegate()
        elif job.state == "queued":
            if not self.is_alive():
                self.restart()
            self.claim(many=False)
        elif self.is_orphan():
            self.recover()
        elif job.cancel:
            self.finish("completed", many=False)
        elif waiting := job.open_calls():
            name = waiting[0]
            self.start(name) if job.calls[name] == "requested" else self.finish_call(name, "ok")
        elif job.step is None and job.requests < 4:
            self.request()
        elif job.step is not None:
            self.respond(2 if job.requests < 4 else 0, unknown=False)
        elif not job.report:
            self.report("Found it.")
        else:
            self.finish("completed", many=False)

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

    @precondition(lambda self: self.job.state == "queued")
    @rule()
    def nobody_comes(self) -> None:
        """No worker can be started in time: an honest interrupted report."""
        pass_queue_deadline(self.row())
        self.settle(expected=True)
        self.end("interrupted")
        assert self.row().error_code == (
            "not_adopted" if self.job.attempts else "never_started"
        )

    @rule()
    def recover(self) -> None:
        orphan, job = self.is_orphan(), self.job
        self.settle(expected=orphan)
        if not orphan:
            return
        if job.cancel:
            self.end("cancelled")
        elif job.attempts - job.planned - 1 >= ADOPTION_ATTEMPTS:
            self.end("interrupted")
            assert self.row().error_code == "adoption_attempts_exhausted"
        else:
            self.release()

    def settle(self, *, expected: bool) -> None:
        """Let recovery run, twice: the second run changes nothing."""
        report = WorkRecovery().settle_orphans()
        assert (str(self.job.pk) in [row["id"] for row in report.rows]) == expected
        before = every_job_row()
        assert WorkRecovery().settle_orphans().examined == 0
        assert every_job_row() == before

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def wake_a_stale_owner(self, data: st.DataObject) -> None:
        """failure H11: it cannot checkpoint, step, report, finish or give back"""
        fence = data.draw(st.sampled_from(self.stale))
        step = WorkStep.objects.filter(job_id=fence.pk).first()
        acts: list[Callable[[], object]] = [
            lambda: transitions.checkpoint_session(fence, "late", 99),
            lambda: transitions.start_provider_step(fence, make.request_facts()),
            lambda: transitions.append_report(fence, "Late."),
            lambda: transitions.finish_job(fence, WorkJob.State.COMPLETED),
            lambda: transitions.finish_job(fence, WorkJob.State.FAILED),
        ]
        if step is not None:
            acts += [
                lambda: transitions.start_step(fence, step.pk),
                lambda: transitions.finish_step(fence, step.pk, SUCCEEDED, result="late"),
            ]
        for act in acts:
            self.refused(act, StaleFence)
        before = every_job_row()
        assert transitions.release_own_jobs([fence]) == []
        assert transitions.finish_jobs([fence], WorkJob.State.COMPLETED) == []
        assert every_job_row() == before


@pytest.mark.timeout(400)
@pytest.mark.django_db(transaction=True)
def test_the_promises_of_jobs_hold_in_every_order_of_events() -> None:
    JobLifecycle.seen.clear()
    run_state_machine_as_test(
        JobLifecycle,
        settings=settings(
            max_examples=14,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    # a long course that nothing disturbs is for chance to miss
    undisturbed = JobLifecycle()
    undisturbed.begin(steps=40, deaths=0)
    undisturbed.teardown()
    assert {"released", "completed", "cancelled"} <= set(JobLifecycle.seen)
