"""No job ends over what was begun after the transaction that ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import psycopg
import pytest

from recovery.errors import StaleFence
from tests import factories as make
from tests.factories import fence_of
from tests.support.rivals import Rival
from tests.support.snapshots import *  # noqa: F403
from tests.support.snapshots import begin
from work.models import WorkJob
from work.transitions import start_provider_step

pytestmark = pytest.mark.django_db(transaction=True)

END: Final = """
    UPDATE work_workjob SET state = 'failed', error_code = 'internal_error', ended_revision = 1,
        finished_at = now(), write_mark = write_mark + 1 WHERE id = %s
"""
OLDER: Final = ("REPEATABLE READ", "SERIALIZABLE")


def ask(job: WorkJob) -> object:
    return start_provider_step(fence_of(job), make.request_facts())


def call(job: WorkJob) -> object:
    return make.WorkStepFactory.create(job=job)


@pytest.fixture
def job() -> WorkJob:
    return make.WorkJobFactory.create(running=True)


def refusal_of_end(session: psycopg.Connection, job: WorkJob) -> str | None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        session.execute(END, [job.pk])
    session.rollback()
    job.refresh_from_db()
    assert job.state == "running"
    return refused.value.diag.constraint_name


@pytest.mark.parametrize("start", [ask, call])
@pytest.mark.parametrize("isolation", OLDER)
def test_an_end_whose_snapshot_is_older_than_a_start_is_refused(
    session: psycopg.Connection,
    job: WorkJob,
    isolation: str,
    start: Callable[[WorkJob], object],
) -> None:
    begin(session, isolation)
    start(job)

    assert refusal_of_end(session, job) == "work_workjob_ends_read_committed"


@pytest.mark.parametrize("isolation", OLDER)
def test_an_end_at_that_level_is_refused_before_a_start_too_which_then_comes(
    session: psycopg.Connection, job: WorkJob, isolation: str
) -> None:
    begin(session, isolation)

    assert refusal_of_end(session, job) == "work_workjob_ends_read_committed"
    ask(job)


@pytest.mark.parametrize("start", [ask, call])
def test_an_end_at_read_committed_sees_a_start_that_came_after_its_transaction(
    session: psycopg.Connection, job: WorkJob, start: Callable[[WorkJob], object]
) -> None:
    begin(session, "READ COMMITTED")
    start(job)

    assert refusal_of_end(session, job) == "work_workjob_ends_whole"


def test_an_end_at_read_committed_that_comes_first_refuses_the_start_that_waits_for_it(
    session: psycopg.Connection, job: WorkJob
) -> None:
    begin(session, "READ COMMITTED")
    session.execute(END, [job.pk])
    start = Rival(lambda: ask(job)).until_it_waits()
    session.commit()

    assert isinstance(start.error(), StaleFence)
    job.refresh_from_db()
    assert (job.state, job.provider_steps.count()) == ("failed", 0)
