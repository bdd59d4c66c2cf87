"""A worker is killed at each durable checkpoint of a job, and another one completes it.

Contract, "Work jobs": an active job is adopted under a higher generation; a call that completed
is never executed again; what was running when the worker died has an unknown outcome.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from recovery.models import RecoveryEvent
from tests.simulators.client import Simulator
from tests.simulators.responses_wire import answer
from tests.support.jobs import (
    calls_of,
    delegate,
    held_in_its_call,
    place_for,
    posting,
    recover_again,
    report_text,
    requests_of,
    require_job_terminal,
    shown,
    wait_until_job,
)
from tests.support.worker import WorkerStarter
from work.models import JobReport, WorkStep
from work.recovery import WorkRecovery

pytestmark = pytest.mark.django_db(transaction=True)

REPORT = "Both are posted."
DONE = ("succeeded", "")
UNKNOWN = ("interrupted", "outcome_unknown")
THREE = ["completed", "completed", "completed"]


@dataclass(frozen=True)
class Death:
    """Where the worker dies; what its rows say then, and in the end.

    `lost` counts the requests that were sent and whose answer the dead worker took along.
    """

    probe: str
    posts: int
    webhooks: int
    calls: tuple[tuple[str, str], ...] = ()
    requests: tuple[str, ...] = ("completed",)
    first_call: tuple[str, str] = DONE
    lost: int = 0

    @property
    def in_the_end(self) -> list[str]:
        """The job's provider steps once it has completed."""
        known = list(self.requests)
        return known + ["completed"] * (3 - known.count("completed"))


WAITING = ("requested", "")
DEATHS = [
    Death("job.claimed", 0, 0, requests=()),
    Death("job.request_started", 0, 0, requests=("interrupted",)),
    Death("job.provider_called", 1, 0, requests=("interrupted",), lost=1),
    Death("job.provider_step_completed", 1, 0, calls=(WAITING,)),
    Death("job.step_requested", 1, 0, calls=(WAITING,)),
    Death("job.step_running", 1, 0, calls=(UNKNOWN,), first_call=UNKNOWN),
    Death("job.outcome_committed", 1, 1, calls=(DONE,)),
    Death("job.between_steps", 1, 1, calls=(DONE,)),
    Death("job.continuing", 1, 1, calls=(DONE,), requests=("completed", "interrupted")),
    Death("job.answered", 3, 2, calls=(DONE, DONE), requests=tuple(THREE)),
    Death("job.report_appended", 3, 2, calls=(DONE, DONE), requests=tuple(THREE)),
    Death("job.finishing", 3, 2, calls=(DONE, DONE), requests=tuple(THREE)),
]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.probe)
def test_a_job_is_adopted_and_completed_and_nothing_is_done_twice(
    death: Death, start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """behaviour O4"""
    model.script(
        *(posting(sink, 1) for _ in range(1 + death.lost)),
        posting(sink, 2),
        answer(REPORT, response_id="resp_3"),
    )
    worker = start_worker(stop_at=[death.probe])
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    worker.wait_until_reached(death.probe)
    worker.kill()

    report = WorkRecovery().run()
    assert (report.examined, report.adopted) == (1, 1)
    recover_again()
    job.refresh_from_db()
    assert (job.state, job.generation, job.attempts, job.owner) == ("queued", 2, 1, None)
    assert (calls_of(job), requests_of(job)) == ([*death.calls], [*death.requests])
    assert (model.posts, sink.posts) == (death.posts, death.webhooks)
    assert shown(job) == []
    event = RecoveryEvent.objects.get(row_id=job.pk)
    assert (event.cause, event.action, event.generation) == ("runtime_lost", "adopted", 1)

    living = start_worker()
    living.hint_job(job.pk, times=3)
    wait_until_job(job)
    require_job_terminal(job)
    assert (job.state, job.error_code) == ("completed", "")
    assert (job.generation, job.attempts) == (3, 2)
    assert (report_text(job), shown(job)) == (REPORT, [REPORT])
    assert calls_of(job) == [death.first_call, DONE]
    assert requests_of(job) == death.in_the_end
    assert model.posts == 3 + death.lost
    ran = [step for step in WorkStep.objects.filter(job=job) if step.state == "succeeded"]
    assert sink.posts_per_key() == {str(step.invocation_key): 1 for step in ran}
    assert JobReport.objects.filter(job=job).count() == 1

    recover_again()


def test_a_job_nobody_had_claimed_is_completed_by_the_next_worker(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    model.script(posting(sink, 1), answer("Posted.", response_id="resp_2"))
    worker = start_worker(stop_at=["job.admitted"])
    job = delegate(place_for(sink))
    worker.hint_job(job.pk)
    worker.wait_until_reached("job.admitted")
    worker.kill()
    assert WorkRecovery().run().changed_count == 0
    job.refresh_from_db()
    assert (job.state, job.generation, model.posts) == ("queued", 0, 0)

    start_worker().hint_job(job.pk, times=3)
    wait_until_job(job)
    assert (job.state, job.generation, job.attempts) == ("completed", 1, 1)
    assert (report_text(job), model.posts, sink.posts) == ("Posted.", 2, 1)


def test_an_adopter_tells_the_model_that_an_outcome_is_unknown(
    start_worker: WorkerStarter, model: Simulator, sink: Simulator
) -> None:
    """The post was in flight: it arrived, and nobody knows; it is not sent again."""
    model.script(posting(sink, 1), answer("It may be posted.", response_id="resp_2"))
    worker = start_worker()
    job = held_in_its_call(worker, sink)
    worker.kill()
    assert WorkRecovery().run().adopted == 1
    assert calls_of(job) == [UNKNOWN]

    start_worker()
    wait_until_job(job)
    assert (job.state, report_text(job)) == ("completed", "It may be posted.")
    step = WorkStep.objects.get(job=job)
    assert sink.posts_per_key() == {str(step.invocation_key): 1}
    told = [i for i in model.requests()[-1].json["input"] if i["type"].startswith("function")]
    assert [item["type"] for item in told] == ["function_call", "function_call_output"]
    assert "unknown" in told[1]["output"]
    assert model.posts == 2
