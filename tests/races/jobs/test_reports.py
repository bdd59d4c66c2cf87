"""A report and the end of its job at the same moment: it is shown, or it was never written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from recovery.errors import StaleFence
from recovery.fences import Fence
from tests import factories as make
from tests.factories import fence_of
from tests.races.jobs.moves import GateOn
from tests.support.jobs import report_text, shown
from tests.support.rivals import Rival, gate
from work.models import JobReport, WorkJob
from work.transitions import append_report, checkpoint_workspace, finish_job, finish_jobs

pytestmark = pytest.mark.django_db(transaction=True)

CONVERSATION: Final = "SELECT FROM turns_conversation WHERE id = %s FOR UPDATE"
COMPLETED: Final = WorkJob.State.COMPLETED


def finish_alone_or_together(fence: Fence) -> object:
    return finish_jobs([fence], COMPLETED) or finish_job(fence, COMPLETED)


ENDS: Final = [
    pytest.param(lambda fence: finish_job(fence, COMPLETED), id="silent"),
    pytest.param(lambda fence: finish_job(fence, COMPLETED, reported=True), id="reported"),
    pytest.param(finish_alone_or_together, id="several"),
]


@pytest.fixture
def job() -> WorkJob:
    """A job at work without a report."""
    return make.WorkJobFactory.create(running=True)


@pytest.mark.parametrize("finish", ENDS)
def test_an_end_that_waited_behind_the_report_shows_it(
    job: WorkJob, finish: Callable[[Fence], object], database_url: str
) -> None:
    fence = fence_of(job)
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        report = Rival(partial(append_report, fence, "Found it.")).until_it_waits()
        end = Rival(partial(finish, fence)).until_it_waits()
        held.open()

    assert report.result().text == "Found it."
    assert end.error() is None
    assert report_text(job) == "Found it."
    job.refresh_from_db()
    assert (job.state, shown(job)) == ("completed", ["Found it."])


@pytest.mark.parametrize("finish", ENDS)
def test_a_report_that_waited_behind_the_end_is_stale(
    job: WorkJob, finish: Callable[[Fence], object], gate_on: GateOn
) -> None:
    fence = fence_of(job)
    with gate_on("job", job) as held:
        end = Rival(partial(finish, fence)).until_it_waits()
        report = Rival(partial(append_report, fence, "Found it.")).until_it_waits()
        assert report.waits_for(end.pid)
        held.open()

    assert end.error() is None
    assert isinstance(report.error(), StaleFence)
    job.refresh_from_db()
    assert (job.state, shown(job)) == ("completed", [])
    assert not JobReport.objects.exists()


def test_one_that_has_just_reported_does_not_keep_the_others_of_its_batch(
    job: WorkJob, database_url: str
) -> None:
    other = make.WorkJobFactory.create(running=True)
    fences = [fence_of(job), fence_of(other)]
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        report = Rival(partial(append_report, fences[0], "Found it.")).until_it_waits()
        end = Rival(partial(finish_jobs, fences, COMPLETED)).until_it_waits()
        held.open()

    assert report.error() is None
    assert [ended.pk for ended in end.result()] == [other.pk]
    assert finish_job(fences[0], COMPLETED).pk == job.pk
    assert report_text(job) == "Found it."


def test_whatever_else_is_written_to_the_job_meanwhile_the_end_comes(
    job: WorkJob, database_url: str
) -> None:
    fence = fence_of(job)
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        note = Rival(partial(checkpoint_workspace, fence, "c0ffee", "branch")).until_it_waits()
        end = Rival(partial(finish_job, fence, COMPLETED, reported=True)).until_it_waits()
        held.open()

    assert note.error() is None
    ended = end.result()
    assert (ended.state, ended.branch) == ("completed", "branch")
