"""A job ends whole: what its own owner began while the end waited is not left open under it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import pytest
from django.db import IntegrityError, connection

from recovery.constraints import violated_constraint
from recovery.errors import IllegalTransition
from recovery.fences import Fence
from tests import factories as make
from tests.factories import fence_of
from tests.support.rivals import Rival, gate
from work.models import WorkJob
from work.transitions import finish_job, finish_jobs, start_provider_step

pytestmark = pytest.mark.django_db(transaction=True)

CONVERSATION: Final = "SELECT FROM turns_conversation WHERE id = %s FOR UPDATE"
COMPLETED: Final = WorkJob.State.COMPLETED
END: Final = """
    UPDATE work_workjob SET state = 'failed', error_code = 'internal_error', ended_revision = 1,
        finished_at = now(), write_mark = write_mark + 1 WHERE id = %s
"""


@pytest.mark.parametrize(
    "finish",
    [
        pytest.param(lambda fence: finish_job(fence, COMPLETED), id="silent"),
        pytest.param(lambda fence: finish_job(fence, COMPLETED, reported=True), id="reported"),
        pytest.param(lambda fence: finish_jobs([fence], COMPLETED), id="several"),
    ],
)
def test_an_end_that_waited_behind_a_start_of_its_owner_does_not_come(
    finish: Callable[[Fence], object], database_url: str
) -> None:
    job = make.WorkJobFactory.create(running=True)
    fence = fence_of(job)
    with gate(database_url, CONVERSATION, job.conversation_id) as held:
        start = Rival(partial(start_provider_step, fence, make.request_facts()))
        start.until_it_waits()
        end = Rival(partial(finish, fence)).until_it_waits()
        held.open()

    assert start.result().state == "started"
    with suppress(IllegalTransition):
        assert end.result() == []
    job.refresh_from_db()
    assert job.state == "running"


def test_one_that_cannot_end_does_not_keep_the_others_of_its_batch(database_url: str) -> None:
    caught, other = make.WorkJobFactory.create_batch(2, running=True)
    with gate(database_url, CONVERSATION, caught.conversation_id) as held:
        start = Rival(partial(start_provider_step, fence_of(caught), make.request_facts()))
        start.until_it_waits()
        fences = [fence_of(caught), fence_of(other)]
        end = Rival(partial(finish_jobs, fences, COMPLETED)).until_it_waits()
        held.open()

    assert start.result().state == "started"
    assert [job.pk for job in end.result()] == [other.pk]
    caught.refresh_from_db()
    assert caught.state == "running"


@pytest.mark.parametrize("child", ["request", "waiting call", "running call"])
def test_no_job_ends_over_what_is_open_by_raw_sql_either(child: str) -> None:
    job = make.WorkJobFactory.create(running=True)
    if child == "request":
        make.WorkProviderStepFactory.create(job=job)
    else:
        make.WorkStepFactory.create(job=job, running=child == "running call")

    with pytest.raises(IntegrityError) as refused, connection.cursor() as cursor:
        cursor.execute(END, [job.pk])

    assert violated_constraint(refused.value) == "work_workjob_ends_whole"


def test_what_has_ended_does_not_keep_a_job_from_its_end() -> None:
    job = make.WorkJobFactory.create(running=True)
    make.WorkProviderStepFactory.create(job=job, completed=True)

    with connection.cursor() as cursor:
        cursor.execute(END, [job.pk])

    job.refresh_from_db()
    assert job.state == "failed"
