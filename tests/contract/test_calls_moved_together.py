"""What came of calls and the start of others are one transaction, of a turn and of a job alike.

An outcome is kept whatever becomes of the starts beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from recovery.errors import IllegalTransition, Refused, StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.support import job_transitions
from tests.support.jobs import every_job_row
from tests.support.settled import every_row
from turns.models import Conversation, Turn
from turns.models.steps import ToolStepFields
from turns.transitions import (
    CallOutcome,
    CancelRequested,
    RequestedCall,
    capture_receipt,
    complete_provider_step,
    move_tool_steps,
    request_cancel,
)
from work.models import WorkJob
from work.transitions import move_steps
from work.transitions import request_cancel as request_cancel_of_job

pytestmark = pytest.mark.django_db

CALLS = [RequestedCall(f"call-{number}", "", "tool", "{}") for number in range(4)]


@dataclass
class Work:
    """A running turn or job with four calls that wait."""

    fence: Fence
    steps: Sequence[ToolStepFields]
    transition: Callable[..., Sequence[ToolStepFields]]
    cancel: Callable[[], object]
    rows: Callable[[], Any]

    def move(
        self, *, ended: dict[int, str] | None = None, starting: Sequence[int] = ()
    ) -> list[str]:
        """Store these results by the number of their call and start these; return these."""
        return [
            step.call_id
            for step in self.transition(
                self.fence,
                ended=[self.outcome(number, text) for number, text in (ended or {}).items()],
                starting=[self.steps[number].pk for number in starting],
            )
        ]

    def outcome(self, number: int, text: str) -> CallOutcome:
        """Return a success."""
        step = self.steps[number]
        return CallOutcome.of(step.pk, step.State.SUCCEEDED, result=text)

    @property
    def states(self) -> list[str]:
        """How the calls stand."""
        stored = type(self.steps[0])._default_manager.order_by("sequence")
        return [step.result or step.state for step in stored]

    @property
    def revision(self) -> int:
        """What each transaction raises by one."""
        return Conversation.objects.get().revision


def a_turn() -> Work:
    turn: Turn = make.TurnFactory.create(running=True)
    fence = make.fence_of(turn)
    request = capture_receipt(fence, make.request_facts())
    steps = complete_provider_step(
        fence, request.pk, response_id="r", usage=None, last_seq=None, calls=CALLS
    )
    owner_id = turn.conversation.owner_id
    return Work(
        fence, steps, move_tool_steps, lambda: request_cancel(owner_id, turn.pk), every_row
    )


def a_job() -> Work:
    job: WorkJob = make.WorkJobFactory.create(running=True)
    fence = make.fence_of(job)
    steps = job_transitions.requested(fence, *CALLS)
    return Work(
        fence,
        steps,
        move_steps,
        lambda: request_cancel_of_job(job.person_id, job.pk),
        every_job_row,
    )


@pytest.fixture(params=[a_turn, a_job])
def work(request: pytest.FixtureRequest) -> Work:
    made: Work = request.param()
    return made


def test_calls_that_run_side_by_side_start_together(work: Work) -> None:
    revision = work.revision

    assert work.move(starting=[2, 0, 1]) == ["call-0", "call-1", "call-2"]

    assert work.states == ["running", "running", "running", "requested"]
    assert work.revision == revision + 1


def test_outcomes_are_stored_with_the_start_of_what_follows(work: Work) -> None:
    work.move(starting=[0, 1])
    revision = work.revision

    assert work.move(ended={0: "one", 1: "two"}, starting=[2, 3]) == ["call-2", "call-3"]

    assert work.states == ["one", "two", "running", "running"]
    assert work.revision == revision + 1


def test_an_outcome_is_kept_when_a_cancel_forbids_the_next_start(work: Work) -> None:
    work.move(starting=[0])
    work.cancel()

    with pytest.raises(CancelRequested):
        work.move(ended={0: "done"}, starting=[1])

    assert work.states == ["done", "requested", "requested", "requested"]


def test_an_outcome_is_kept_when_a_call_beside_it_was_started_before(work: Work) -> None:
    work.move(starting=[0, 1])

    with pytest.raises(IllegalTransition):
        work.move(ended={0: "done"}, starting=[2, 1])

    assert work.states == ["done", "running", "requested", "requested"]


def test_the_same_outcome_again_lets_the_next_call_start(work: Work) -> None:
    """The commit was lost, and with it the answer that this one had a cancel."""
    work.move(starting=[0])
    work.move(ended={0: "done"})

    assert work.move(ended={0: "done"}, starting=[1]) == ["call-1"]

    assert work.states == ["done", "running", "requested", "requested"]


def test_a_repetition_writes_nothing(work: Work) -> None:
    work.move(starting=[0, 1])
    work.move(ended={0: "one", 1: "two"})
    before = work.rows()

    assert work.move(ended={1: "two", 0: "one"}) == []

    assert work.rows() == before


def test_another_outcome_starts_nothing(work: Work) -> None:
    work.move(starting=[0])
    work.move(ended={0: "done"})
    before = work.rows()

    with pytest.raises(Refused):
        work.move(ended={0: "something else"}, starting=[1])

    assert work.rows() == before


def test_a_call_that_was_not_started_does_not_succeed_beside_a_start(work: Work) -> None:
    before = work.rows()

    with pytest.raises(IllegalTransition):
        work.move(ended={0: "done"}, starting=[1])

    assert work.rows() == before


def test_a_stale_owner_moves_nothing(work: Work) -> None:
    work.move(starting=[0])
    before = work.rows()
    held, work.fence = (
        work.fence,
        Fence(work.fence.pk, work.fence.generation + 1, work.fence.token),
    )

    with pytest.raises(StaleFence):
        work.move(ended={0: "done"}, starting=[1])

    assert work.rows() == before
    work.fence = held
    assert work.move(ended={0: "done"}, starting=[1]) == ["call-1"]
